"""Rotary position embedding fused with the write of keys and values to the paged KV cache.

The rotation uses the halves layout of Hugging Face checkpoints: element i of a head pairs with element i + D/2.

Grid (T, tiles of query heads + tiles of KV heads): a program rotates up to HEADS_PER_TILE query heads of one token, or
rotates as many key heads, writes them back and to their slot, and copies the value heads to theirs. Bytes moved per
token, e to an element: queries and keys read and written, values read, keys and values written to the cache:
D * e * (2 H + 5 G), and 4 D of cosines and sines for each tile, from the L2 cache mostly. In float8 the two writes to
the cache take D * G bytes each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_tiles import next_power_of_2
from kernels.triton.cache_write import store_heads
from kernels.triton.checks import as_bytes, check_cache, check_heads, check_indices, reject

_TILE_PAIRS = 1024  # pairs of elements that a program rotates: 8 for each of 128 threads, one load of 16 bytes a half


@triton.jit
def rope_and_cache_kernel(
    q_ptr,  # [T, H, D], q_stride elements from token to token
    k_ptr,  # [T, G, D]
    v_ptr,  # [T, G, D]
    cos_sin_ptr,  # [max positions, D] float32: D/2 cosines, then D/2 sines
    positions_ptr,  # [T] int32
    key_ptr,  # [N, G, B, D]
    value_ptr,  # [N, G, B, D]
    slot_mapping_ptr,  # [T] int64
    k_scale_ptr,  # [G] float32, None unless the cache is float8
    v_scale_ptr,  # [G] float32
    q_stride,
    k_stride,
    v_stride,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HEADS_PER_TILE: tl.constexpr,
):
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    query_tiles = tl.cdiv(QUERY_HEADS, HEADS_PER_TILE)
    pairs = tl.arange(0, BLOCK_HALF)
    position = tl.load(positions_ptr + token).to(tl.int64)
    cos = tl.load(cos_sin_ptr + position * HEAD_DIM + pairs, mask=pairs < HALF, other=0.0)[None, :]
    sin = tl.load(cos_sin_ptr + position * HEAD_DIM + HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
    if tile < query_tiles:
        heads = tile * HEADS_PER_TILE + tl.arange(0, HEADS_PER_TILE)
        mask = (heads < QUERY_HEADS)[:, None] & (pairs < HALF)[None, :]
        place = q_ptr + token * q_stride + heads[:, None] * HEAD_DIM + pairs[None, :]
        first, second = _rotate(place, mask, cos, sin, HALF)
        tl.store(place, first, mask=mask)
        tl.store(place + HALF, second, mask=mask)
    else:
        heads = (tile - query_tiles) * HEADS_PER_TILE + tl.arange(0, HEADS_PER_TILE)
        mask = (heads < KV_HEADS)[:, None] & (pairs < HALF)[None, :]
        place = k_ptr + token * k_stride + heads[:, None] * HEAD_DIM + pairs[None, :]
        first, second = _rotate(place, mask, cos, sin, HALF)
        tl.store(place, first, mask=mask)
        tl.store(place + HALF, second, mask=mask)
        slot = tl.load(slot_mapping_ptr + token)
        store_heads(key_ptr, slot, heads, pairs, first, k_scale_ptr, KV_HEADS, HEAD_DIM, BLOCK_SIZE, HALF)
        store_heads(key_ptr + HALF, slot, heads, pairs, second, k_scale_ptr, KV_HEADS, HEAD_DIM, BLOCK_SIZE, HALF)
        place = v_ptr + token * v_stride + heads[:, None] * HEAD_DIM + pairs[None, :]
        first = tl.load(place, mask=mask, other=0.0)
        second = tl.load(place + HALF, mask=mask, other=0.0)
        store_heads(value_ptr, slot, heads, pairs, first, v_scale_ptr, KV_HEADS, HEAD_DIM, BLOCK_SIZE, HALF)
        store_heads(value_ptr + HALF, slot, heads, pairs, second, v_scale_ptr, KV_HEADS, HEAD_DIM, BLOCK_SIZE, HALF)


@triton.jit
def _rotate(place, mask, cos, sin, HALF: tl.constexpr):
    """Both halves of the heads at `place`, rotated in float32 and rounded to their type."""
    first = tl.load(place, mask=mask, other=0.0)
    second = tl.load(place + HALF, mask=mask, other=0.0)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    rotated_first = (wide_first * cos - wide_second * sin).to(first.dtype)
    rotated_second = (wide_second * cos + wide_first * sin).to(second.dtype)
    return rotated_first, rotated_second


def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Rotates q [T, H, D] and k [T, G, D] in place by cos_sin [max positions, D] float32 at positions [T] int32, and
    writes k and v [T, G, D] to slots slot_mapping [T] int64 of the caches [N, G, B, D].

    q, k and v may be strided views of one projection, with dense heads. A negative slot, of a padding row, is not
    written. k_scale, v_scale [G] float32: given with caches in float8_e4m3fn, which then hold the values over their
    head's scale, clamped to +-448; None with caches in k's type. Raises ValueError naming the field and the limit;
    positions and slots beyond their tables are not checked.
    """
    op = "rope_and_cache"
    tokens = slot_mapping.shape[0]
    _, kv_heads, block_size, head_dim = check_cache(op, key_cache, value_cache, k.dtype, k_scale, v_scale)
    query_heads = check_heads(op, "q", q, tokens, head_dim)
    for field, x in (("k", k), ("v", v)):
        if check_heads(op, field, x, tokens, head_dim) != kv_heads or x.dtype is not q.dtype:
            reject(op, field, f"of {kv_heads} heads as the KV cache is, in q's type", x)
    if cos_sin.dim() != 2 or cos_sin.shape[1] != head_dim or head_dim % 2 or not cos_sin.is_contiguous():
        reject(op, "cos_sin", f"[max positions, {head_dim}], contiguous, the head size even", cos_sin)
    if cos_sin.dtype is not torch.float32:
        reject(op, "cos_sin", "in float32", cos_sin)
    check_indices(op, "positions", positions, tokens, torch.int32)
    check_indices(op, "slot_mapping", slot_mapping, tokens, torch.int64)
    if tokens == 0:
        return
    block_half = next_power_of_2(head_dim // 2)
    heads_per_tile = min(max(1, _TILE_PAIRS // block_half), next_power_of_2(max(query_heads, kv_heads)))
    tiles = -(-query_heads // heads_per_tile) + -(-kv_heads // heads_per_tile)
    rope_and_cache_kernel[(tokens, tiles)](
        q,
        k,
        v,
        cos_sin,
        positions,
        as_bytes(key_cache),
        as_bytes(value_cache),
        slot_mapping,
        k_scale,
        v_scale,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        QUERY_HEADS=query_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_HALF=block_half,
        HEADS_PER_TILE=heads_per_tile,
        num_warps=4,
    )
