"""The write of keys and values to the paged KV cache, without rotation: for models whose positions are not rotary.

Grid (T, tiles of KV heads): a program copies up to HEADS_PER_TILE heads of one token's keys and values to their slot.
Bytes moved per token, e to an element: 4 * G * D * e, or 2 * G * D * (e + 1) to a float8 cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_tiles import next_power_of_2
from kernels.triton.cache_write import store_heads
from kernels.triton.checks import as_bytes, check_cache, check_heads, check_indices, reject

_TILE_ELEMENTS = 1024  # of keys, and of values, in a program: 8 for each of 128 threads, one load of 16 bytes


@triton.jit
def reshape_and_cache_kernel(
    k_ptr,  # [T, G, D], k_stride elements from token to token
    v_ptr,  # [T, G, D]
    key_ptr,  # [N, G, B, D]
    value_ptr,  # [N, G, B, D]
    slot_mapping_ptr,  # [T] int64
    k_scale_ptr,  # [G] float32, None unless the cache is float8
    v_scale_ptr,  # [G] float32
    k_stride,
    v_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HEADS_PER_TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS_PER_TILE + tl.arange(0, HEADS_PER_TILE)
    dims = tl.arange(0, BLOCK_D)
    mask = (heads < KV_HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    offsets = heads[:, None] * HEAD_DIM + dims[None, :]
    slot = tl.load(slot_mapping_ptr + token)
    k = tl.load(k_ptr + token * k_stride + offsets, mask=mask, other=0.0)
    v = tl.load(v_ptr + token * v_stride + offsets, mask=mask, other=0.0)
    store_heads(key_ptr, slot, heads, dims, k, k_scale_ptr, KV_HEADS, HEAD_DIM, BLOCK_SIZE, HEAD_DIM)
    store_heads(value_ptr, slot, heads, dims, v, v_scale_ptr, KV_HEADS, HEAD_DIM, BLOCK_SIZE, HEAD_DIM)


def reshape_and_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Writes k and v [T, G, D] with dense heads to slots slot_mapping [T] int64 of the caches [N, G, B, D]; a negative
    slot is not written. k_scale, v_scale as `rope_and_cache` takes them. Raises ValueError naming the field."""
    op = "reshape_and_cache"
    tokens = slot_mapping.shape[0]
    _, kv_heads, block_size, head_dim = check_cache(op, key_cache, value_cache, k.dtype, k_scale, v_scale)
    for field, x in (("k", k), ("v", v)):
        if check_heads(op, field, x, tokens, head_dim) != kv_heads or x.dtype is not k.dtype:
            reject(op, field, f"of {kv_heads} heads as the KV cache is, in k's type", x)
    check_indices(op, "slot_mapping", slot_mapping, tokens, torch.int64)
    if tokens == 0:
        return
    block_d = next_power_of_2(head_dim)
    heads_per_tile = min(max(1, _TILE_ELEMENTS // block_d), next_power_of_2(kv_heads))
    reshape_and_cache_kernel[(tokens, -(-kv_heads // heads_per_tile))](
        k,
        v,
        as_bytes(key_cache),
        as_bytes(value_cache),
        slot_mapping,
        k_scale,
        v_scale,
        k.stride(0),
        v.stride(0),
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_D=block_d,
        HEADS_PER_TILE=heads_per_tile,
        num_warps=4,
    )
