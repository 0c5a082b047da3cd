"""Paged attention for sequences with many queries: whole prompts and chunks of them.

Grid (tiles * G): a program takes BLOCK_M // GROUP consecutive queries of one sequence with all query heads of one KV
head, and streams over the keys they see. Per tile it reads 2 * D elements per visible key, from the L2 cache mostly,
and writes BLOCK_M * D; it computes 4 * BLOCK_M * D operations per visible key.

The host does not know where sequences end, so the grid has room for T // (BLOCK_M // GROUP) + S tiles, the most there
can be, and each program finds its sequence by bisection of query_start_loc; those without work return. Tiles run
from the last to the first: in a causal prompt the last have the most keys, and the short ones fill the tail.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton import float8
from kernels.triton.streaming_softmax import load_queries, row_exists, stream_keys


@triton.jit
def find_sequence(query_start_loc_ptr, tile, num_seqs, QUERIES: tl.constexpr):
    """The last sequence whose first tile is not behind `tile`: sequence s begins with tile start // QUERIES + s."""
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_loc_ptr + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["num_seqs", "min_query_len", "table_stride", "window"])
def prefill_kernel(
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
    num_seqs,
    min_query_len,
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
    AHEAD: tl.constexpr,
):
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = program % KV_HEADS
    tile = program // KV_HEADS
    sequence = find_sequence(query_start_loc_ptr, tile, num_seqs, QUERIES)
    start = tl.load(query_start_loc_ptr + sequence)
    end = tl.load(query_start_loc_ptr + sequence + 1)
    first_query = start + (tile - start // QUERIES - sequence) * QUERIES
    if first_query >= end or end - start < min_query_len:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    first_pos = seq_len - end + first_query
    end_key = tl.minimum(first_pos + QUERIES, seq_len)
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(first_pos - window + 1, 0)
    table_ptr = block_tables_ptr + sequence.to(tl.int64) * table_stride
    qk_scale = scale
    if KV_FORMAT != 0:
        qk_scale *= float8.scale_of(k_scale_ptr, kv_head, KV_FORMAT == 1)

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    query_pos = first_pos + rows // GROUP
    q = load_queries(q_ptr, first_query, end, kv_head, q_stride, GROUP, HEAD_DIM, BLOCK_D, BLOCK_M, KV_FORMAT)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    # Keys in common_start..common_end - 1 are seen by all queries of the tile and need no masks.
    common_start = first_key
    if HAS_WINDOW:
        unseen = tl.minimum(QUERIES, seq_len - first_pos) - 1  # keys that the first query sees and the last does not
        common_start = tl.minimum(first_key + tl.cdiv(unseen, BLOCK_N) * BLOCK_N, end_key)
    common_end = common_start + tl.maximum(first_pos + 1 - common_start, 0) // BLOCK_N * BLOCK_N
    for part in tl.static_range(0 if HAS_WINDOW else 1, 3):
        acc, row_max, row_sum = stream_keys(
            acc,
            row_max,
            row_sum,
            q,
            query_pos,
            first_key if part == 0 else common_start if part == 1 else common_end,
            common_start if part == 0 else common_end if part == 1 else end_key,
            key_ptr,
            value_ptr,
            table_ptr,
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
            MASKED=part != 1,
            AHEAD=AHEAD and part == 1,
        )
    attended = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]  # 0 in rows that do not exist, under a window
    if KV_FORMAT != 0:
        attended *= float8.scale_of(v_scale_ptr, kv_head, KV_FORMAT == 1)
    HEADS: tl.constexpr = KV_HEADS * GROUP
    offsets = (rows // GROUP * HEADS + rows % GROUP) * HEAD_DIM
    tile_ptr = out_ptr + (first_query.to(tl.int64) * HEADS + kv_head * GROUP) * HEAD_DIM
    mask = row_exists(first_query, end, GROUP, BLOCK_M)[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(tile_ptr + offsets[:, None] + dims[None, :], attended, mask=mask)
