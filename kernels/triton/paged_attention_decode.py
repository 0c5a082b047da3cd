"""Paged attention for sequences with few queries, in two stages.

Stage 1, grid (S, G, splits): a program takes one sequence, one KV head and one range of split_tokens keys. All query
heads of the KV head, of up to QUERIES = BLOCK_M // GROUP queries, are rows of one tile, so that each byte of keys and
values is read once: 2 * D elements per key and KV head, the op's whole traffic but for the queries. That serves
decoding and the verification of a few drafted tokens; sequences with more queries are left to the prefill kernel. A
sequence that fits one range is written to the output at once; of the others every range writes its partial output and
the log2 of its sum of exponentials.

Stage 2, grid (S, H): merges the partial outputs of the sequences that have several, reading 4 * (D + 1) bytes per range
and head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton import float8
from kernels.triton.streaming_softmax import load_queries, row_exists, stream_keys


@triton.jit
def split_bounds(query_len, seq_len, window, split_tokens, HAS_WINDOW: tl.constexpr):
    """The first key that any query of the sequence sees, and the number of ranges from there to its end."""
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(seq_len - query_len - window + 1, 0)
    return first_key, tl.cdiv(seq_len - first_key, split_tokens)


@triton.jit(do_not_specialize=["table_stride", "window", "split_tokens"])
def decode_kernel(
    q_ptr,  # [T, H, D], q_stride elements from token to token
    key_ptr,  # [N, G, B, D]
    value_ptr,  # [N, G, B, D]
    out_ptr,  # [T, H, D]
    query_start_loc_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    block_tables_ptr,  # [S, max blocks], table_stride elements from row to row
    k_scale_ptr,  # [G] float32, read with KV_FORMAT other than 0
    v_scale_ptr,  # [G] float32
    q_stride,
    table_stride,
    scale,
    soft_cap,
    window,
    partial_ptr,  # [S, QUERIES, H, splits, D] float32, None without HAS_SPLITS
    log_sum_ptr,  # [S, QUERIES, H, splits] float32
    split_tokens,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SPLITS: tl.constexpr,
):
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    HEADS: tl.constexpr = KV_HEADS * GROUP
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(query_start_loc_ptr + sequence)
    end = tl.load(query_start_loc_ptr + sequence + 1)
    seq_len = tl.load(seq_lens_ptr + sequence)
    first_key, num_splits = split_bounds(end - start, seq_len, window, split_tokens, HAS_WINDOW)
    # A row without keys has one empty range, which writes zeros.
    if end - start > QUERIES or split >= tl.maximum(num_splits, 1):
        return
    first_key += split * split_tokens
    end_key = tl.minimum(first_key + split_tokens, seq_len)
    qk_scale = scale
    if KV_FORMAT != 0:
        qk_scale *= float8.scale_of(k_scale_ptr, kv_head, KV_FORMAT == 1)

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    acc, row_max, row_sum = stream_keys(
        tl.zeros([BLOCK_M, BLOCK_D], tl.float32),
        tl.full([BLOCK_M], float("-inf"), tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        load_queries(q_ptr, start, end, kv_head, q_stride, GROUP, HEAD_DIM, BLOCK_D, BLOCK_M, KV_FORMAT),
        seq_len - (end - start) + rows // GROUP,
        first_key,
        end_key,
        key_ptr,
        value_ptr,
        block_tables_ptr + sequence.to(tl.int64) * table_stride,
        kv_head,
        qk_scale,
        soft_cap,
        window,
        KV_HEADS,
        HEAD_DIM,
        BLOCK_SIZE,
        BLOCK_D,
        BLOCK_N,
        KV_FORMAT,
        HAS_SOFT_CAP,
        HAS_WINDOW,
        MASKED=True,
        AHEAD=False,
    )
    attended = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    if KV_FORMAT != 0:
        attended *= float8.scale_of(v_scale_ptr, kv_head, KV_FORMAT == 1)

    in_head = (dims < HEAD_DIM)[None, :]
    exists = row_exists(start, end, GROUP, BLOCK_M)
    out_rows = rows // GROUP * HEADS + kv_head * GROUP + rows % GROUP  # [QUERIES, H] of the sequence
    if HAS_SPLITS:
        # Which of the two stores happens is a matter of masks: a branch would stall on them more than they cost.
        is_part = exists & (rows < tl.where(num_splits > 1, BLOCK_M, 0))
        exists = exists & (rows < tl.where(num_splits > 1, 0, BLOCK_M))
        partial_rows = (sequence.to(tl.int64) * (QUERIES * HEADS) + out_rows) * tl.num_programs(2) + split
        partial = partial_ptr + partial_rows[:, None] * HEAD_DIM + dims[None, :]
        tl.store(partial, attended, mask=is_part[:, None] & in_head)
        tl.store(log_sum_ptr + partial_rows, row_max + tl.log2(row_sum), mask=is_part)
    first_out_ptr = out_ptr + start.to(tl.int64) * (HEADS * HEAD_DIM)
    tl.store(first_out_ptr + out_rows[:, None] * HEAD_DIM + dims[None, :], attended, mask=exists[:, None] & in_head)


@triton.jit(do_not_specialize=["splits", "split_tokens", "window"])
def merge_kernel(
    partial_ptr,  # [S, QUERIES, H, splits, D] float32
    log_sum_ptr,  # [S, QUERIES, H, splits] float32
    out_ptr,  # [T, H, D]
    query_start_loc_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    splits,
    split_tokens,
    window,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    sequence = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    start = tl.load(query_start_loc_ptr + sequence)
    end = tl.load(query_start_loc_ptr + sequence + 1)
    seq_len = tl.load(seq_lens_ptr + sequence)
    _, num_splits = split_bounds(end - start, seq_len, window, split_tokens, HAS_WINDOW)
    if end - start > QUERIES or num_splits <= 1:
        return
    dims = tl.arange(0, BLOCK_D)
    all_splits = tl.arange(0, PADDED_SPLITS)
    for query in tl.range(start, end):
        row = ((sequence * QUERIES + query - start) * HEADS + head) * splits
        log_sums = tl.load(log_sum_ptr + row + all_splits, mask=all_splits < num_splits, other=float("-inf"))
        largest = tl.max(log_sums, axis=0)
        total = tl.sum(tl.exp2(log_sums - largest), axis=0)
        acc = tl.zeros([BLOCK_D], tl.float32)
        for first in tl.range(0, num_splits, BLOCK_SPLITS):
            some = first + tl.arange(0, BLOCK_SPLITS)
            log_sum = tl.load(log_sum_ptr + row + some, mask=some < num_splits, other=float("-inf"))
            mask = (some < num_splits)[:, None] & (dims < HEAD_DIM)[None, :]
            partial = tl.load(partial_ptr + (row + some)[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
            acc += tl.sum(partial * tl.exp2(log_sum - largest)[:, None], axis=0)
        out = out_ptr + (query * HEADS + head) * HEAD_DIM + dims
        tl.store(out, acc / total, mask=dims < HEAD_DIM)
