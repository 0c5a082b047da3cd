"""Causal attention over a paged KV cache: the launcher of its kernels.

Sequences with few queries go to the decode kernels (`paged_attention_decode.py`), the others to the prefill kernel
(`paged_attention_prefill.py`). Which is which is decided on the GPU, sequence by sequence, since the host does not know
the lengths: both run over the whole step, unless T and S alone show that one of them has nothing to do. So T = S must
mean one query in each sequence, which holds if none is in the step without a query.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.triton.attention_tiles import MAX_SPLITS, Tile, decode_tile, next_power_of_2, prefill_tile, split_tokens
from kernels.triton.checks import as_bytes, check_cache, check_heads, check_indices, reject
from kernels.triton.device import Gpu, gpu_of
from kernels.triton.paged_attention_decode import decode_kernel, merge_kernel
from kernels.triton.paged_attention_prefill import prefill_kernel

MAX_GROUP = 128  # query heads of one KV head: the rows of the largest tile
MAX_HEAD_DIM = 256


def paged_attention(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    window: int,
    soft_cap: float = 0.0,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """q [T, H, D] with dense heads, any distance between tokens; key_cache and value_cache [N, G, B, D] contiguous;
    query_start_loc [S + 1], seq_lens [S] int32, block_tables [S, max blocks] int32 with contiguous rows -> [T, H, D]
    contiguous.

    scale is positive. window: 0 is none. soft_cap c > 0: a score s, after `scale`, becomes c * tanh(s / c); 0 is none.
    k_scale, v_scale [G] float32: given with caches in float8_e4m3fn, where a stored value times its head's scale is
    the real one; None with caches in q's type. The number of KV ranges is chosen for sequences that fill block_tables:
    pass tables no wider than the step's longest sequence needs. Nothing is read back from the GPU. Raises ValueError
    naming the field and the limit.
    """
    op = "paged_attention"
    tokens, num_seqs = q.shape[0], seq_lens.shape[0]
    _, kv_heads, block_size, head_dim = check_cache(op, key_cache, value_cache, q.dtype, k_scale, v_scale)
    heads = check_heads(op, "q", q, tokens, head_dim)
    group = heads // kv_heads
    if heads % kv_heads or group > MAX_GROUP or head_dim > MAX_HEAD_DIM:
        expected = f"of up to {MAX_GROUP} times {kv_heads} heads, a multiple of {kv_heads}, of up to {MAX_HEAD_DIM}"
        reject(op, "q", expected, q)
    check_indices(op, "seq_lens", seq_lens, num_seqs, torch.int32)
    check_indices(op, "query_start_loc", query_start_loc, num_seqs + 1, torch.int32)
    if block_tables.dim() != 2 or block_tables.dtype is not torch.int32 or block_tables.shape[0] != num_seqs:
        reject(op, "block_tables", f"[{num_seqs}, max blocks] in int32", block_tables)
    if block_tables.stride(1) != 1 and block_tables.shape[1] > 1:
        reject(op, "block_tables", "with contiguous rows", block_tables)
    if window < 0 or soft_cap < 0.0 or scale <= 0.0:
        raise ValueError(
            f"{op}: window and soft_cap must be 0 (none) or positive, scale positive, got {window}, {soft_cap}, {scale}"
        )
    out = torch.empty((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
    if tokens == 0:
        return out
    gpu = gpu_of(q)
    shared = (
        q,
        as_bytes(key_cache),
        as_bytes(value_cache),
        out,
        query_start_loc,
        seq_lens,
        block_tables,
        k_scale,
        v_scale,
        q.stride(0),
        block_tables.stride(0),
        scale,
        soft_cap,
        window,
    )
    constants = {
        "GROUP": group,
        "KV_HEADS": kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "BLOCK_D": max(16, next_power_of_2(head_dim)),
        "KV_FORMAT": 0 if k_scale is None else (1 if gpu.capability >= 89 else 2),
        "HAS_SOFT_CAP": soft_cap > 0.0,
        "HAS_WINDOW": window > 0,
    }
    decode = decode_tile(gpu, group, head_dim, key_cache.element_size())
    few_queries = decode.block_m // group  # what a decode tile takes
    if num_seqs > 1 or tokens <= few_queries:
        _decode(gpu, decode, shared, constants)
    if tokens == num_seqs or tokens <= few_queries:
        return out
    is_plain = not (window or soft_cap or k_scale is not None)
    prefill = prefill_tile(gpu, group, head_dim, q.element_size(), window > 0, is_plain)
    tiles = tokens // (prefill.block_m // group) + num_seqs  # the most there can be
    prefill_kernel[(tiles * kv_heads,)](
        *shared,
        num_seqs,
        few_queries + 1,
        **constants,
        BLOCK_M=prefill.block_m,
        BLOCK_N=prefill.block_n,
        AHEAD=prefill.ahead,
        num_warps=prefill.num_warps,
        num_stages=prefill.num_stages,
        enable_fp_fusion=True,
    )
    return out


def _decode(gpu: Gpu, tile: Tile, shared: tuple[Any, ...], constants: dict[str, int]) -> None:
    """Both stages for the sequences of few queries."""
    _, key_cache, _, out, query_start_loc, seq_lens, block_tables, *_, window = shared
    (_, heads, head_dim), kv_heads = out.shape, constants["KV_HEADS"]
    num_seqs, max_blocks = block_tables.shape
    few_queries = tile.block_m // constants["GROUP"]
    max_tokens = max_blocks * constants["BLOCK_SIZE"]
    if window:
        max_tokens = min(max_tokens, window + few_queries - 1)
    token_bytes = 2 * head_dim * key_cache.element_size()
    range_tokens = split_tokens(gpu, tile, num_seqs * kv_heads, max_tokens, token_bytes)
    splits = max(1, -(-max_tokens // range_tokens))
    partial = log_sums = None
    if splits > 1:
        rows = (num_seqs, few_queries, heads, splits)
        partial = torch.empty((*rows, head_dim), dtype=torch.float32, device=out.device)
        log_sums = torch.empty(rows, dtype=torch.float32, device=out.device)
    decode_kernel[(num_seqs, kv_heads, splits)](
        *shared,
        partial,
        log_sums,
        range_tokens,
        **constants,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        HAS_SPLITS=splits > 1,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,
    )
    if splits > 1:
        merge_kernel[(num_seqs, heads)](
            partial,
            log_sums,
            out,
            query_start_loc,
            seq_lens,
            splits,
            range_tokens,
            window,
            QUERIES=few_queries,
            HEADS=heads,
            HEAD_DIM=head_dim,
            BLOCK_D=constants["BLOCK_D"],
            BLOCK_SPLITS=16,
            PADDED_SPLITS=MAX_SPLITS,
            HAS_WINDOW=window > 0,
            num_warps=4,
        )
