"""The inner loop of paged attention: a tile of query rows streams over a range of keys and values.

Softmax is computed as the keys come by (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018;
Dao, "FlashAttention-2", 2023): a running maximum, a running sum and an unnormalised output per row, so that no score
leaves the chip. Exponentials are taken to base 2, the hardware's own, with log2(e) folded into the scale.

KV_FORMAT says how keys and values are stored: 0 in the type of the queries, 1 as float8 e4m3 that the hardware
converts, 2 as float8 e4m3 that it cannot. Over float8 both products are taken in float16, which holds e4m3 exactly;
bfloat16 would cost two more conversions per value, and conversions, not bytes, would then bound decoding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton import float8

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_queries(
    q_ptr,  # [T, H, D], q_stride elements from token to token
    first_query,
    end_query,
    kv_head,
    q_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    KV_FORMAT: tl.constexpr,
):
    """Row r of the tile is head kv_head * GROUP + r % GROUP of query first_query + r // GROUP: all query heads of a KV
    head share its keys. -> the tile [BLOCK_M, BLOCK_D], zeros where a row or column does not exist."""
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    # Offsets within a tile fit 32 bits; with 64 they would take registers from the output.
    offsets = rows // GROUP * q_stride + rows % GROUP * HEAD_DIM
    tile_ptr = q_ptr + first_query.to(tl.int64) * q_stride + kv_head * (GROUP * HEAD_DIM)
    mask = row_exists(first_query, end_query, GROUP, BLOCK_M)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(tile_ptr + offsets[:, None] + dims[None, :], mask=mask, other=0.0)
    if KV_FORMAT != 0:
        q = tl.clamp(q.to(tl.float32), -65504.0, 65504.0).to(tl.float16)
    return q


@triton.jit
def row_exists(first_query, end_query, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """[BLOCK_M] booleans: BLOCK_M need not be a multiple of GROUP, and a sequence's queries may end in the tile."""
    rows = tl.arange(0, BLOCK_M)
    return (rows < BLOCK_M // GROUP * GROUP) & (first_query + rows // GROUP < end_query)


@triton.jit
def stream_keys(
    acc,  # [BLOCK_M, BLOCK_D] float32, output not yet divided by row_sum
    row_max,  # [BLOCK_M] float32, largest score so far, to base 2
    row_sum,  # [BLOCK_M] float32
    q,  # [BLOCK_M, BLOCK_D]
    query_pos,  # [BLOCK_M] positions of the queries in their sequence
    first_key,
    end_key,
    key_ptr,  # [N, G, B, D]
    value_ptr,  # [N, G, B, D]
    table_ptr,  # [max blocks] block ids of the sequence
    kv_head,
    qk_scale,
    soft_cap,
    window,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Continues the softmax over keys first_key..end_key - 1 -> acc, row_max, row_sum.

    Not MASKED: every key of the range is visible to every row and the range is a multiple of BLOCK_N. MASKED: neither
    need hold; table entries and slots outside the range are not read, they may hold anything. A row that has seen no
    key yet has row_max -inf and row_sum 0.

    AHEAD, which goes without MASKED: a step computes the scores of the next one, so that on Hopper, where a product
    runs beside other instructions, the tensor cores have work while exponentials are taken (Shah et al.,
    "FlashAttention-3", 2024). The last step's are of no keys and are dropped.
    """
    tokens = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    in_head = (dims < HEAD_DIM)[None, :]
    inner_scale = 0.0
    outer_scale = qk_scale * LOG2_E
    if HAS_SOFT_CAP:
        inner_scale = qk_scale / soft_cap
        outer_scale = soft_cap * LOG2_E
    next_pos = first_key + tokens
    next_blocks = tl.load(table_ptr + next_pos // BLOCK_SIZE, mask=next_pos < end_key, other=0)
    if AHEAD:
        offsets = _offsets(next_blocks, next_pos, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_D)
        keys = _load_tile(key_ptr, offsets, in_head, KV_FORMAT, BLOCK_D != HEAD_DIM)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
        next_pos += BLOCK_N
        next_blocks = tl.load(table_ptr + next_pos // BLOCK_SIZE, mask=next_pos < end_key, other=0)
    for _ in tl.range(first_key, end_key, BLOCK_N):
        # Block ids are loaded a step ahead of the keys that they lead to. Loaded in the same step they would take a
        # stage of the pipeline of their own, and keys and values would get half the buffers.
        key_pos = next_pos
        blocks = next_blocks
        next_pos += BLOCK_N
        next_blocks = tl.load(table_ptr + next_pos // BLOCK_SIZE, mask=next_pos < end_key, other=0)
        of_keys = _offsets(blocks, key_pos, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_D)
        if AHEAD:
            keys = _load_tile(key_ptr, of_keys, in_head, KV_FORMAT, BLOCK_D != HEAD_DIM)
            values = _load_tile(value_ptr, offsets, in_head, KV_FORMAT, BLOCK_D != HEAD_DIM)
            next_scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
        else:
            readable = in_head
            if MASKED:
                readable = (key_pos < end_key)[:, None] & in_head  # 0 * NaN must not come in
            keys = _load_tile(key_ptr, of_keys, readable, KV_FORMAT, MASKED or BLOCK_D != HEAD_DIM)
            values = _load_tile(value_ptr, of_keys, readable, KV_FORMAT, MASKED or BLOCK_D != HEAD_DIM)
            scores = tl.dot(q, tl.trans(keys), input_precision="ieee")  # [BLOCK_M, BLOCK_N] float32
        if HAS_SOFT_CAP:
            scores = 1.0 - 2.0 / (tl.exp2(scores * (inner_scale * 2.0 * LOG2_E)) + 1.0)  # tanh, 1 or -1 at the ends
        if MASKED:
            visible = (key_pos < end_key)[None, :] & (key_pos[None, :] <= query_pos[:, None])
            if HAS_WINDOW:
                visible &= key_pos[None, :] > query_pos[:, None] - window
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1) * outer_scale)
        shift = new_max
        if MASKED:
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # no key seen yet: -inf - -inf would be NaN
        weights = tl.exp2(scores * outer_scale - shift[:, None])
        decay = tl.exp2(row_max - shift)
        row_sum = row_sum * decay + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(values.dtype), values, acc * decay[:, None], input_precision="ieee")
        row_max = new_max
        if AHEAD:
            scores = next_scores
            offsets = of_keys
    return acc, row_max, row_sum


@triton.jit
def _offsets(
    blocks,
    key_pos,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """[BLOCK_N, BLOCK_D] places of tokens key_pos, in those blocks, in a cache."""
    # The caches as rows of D: fewer than 2^31 of them (the launcher sees to it), but more elements.
    cache_rows = (blocks * KV_HEADS + kv_head) * BLOCK_SIZE + key_pos % BLOCK_SIZE
    return cache_rows.to(tl.int64)[:, None] * HEAD_DIM + tl.arange(0, BLOCK_D)[None, :]


@triton.jit
def _load_tile(cache_ptr, offsets, mask, KV_FORMAT: tl.constexpr, HAS_MASK: tl.constexpr):
    """Keys or values in the type that products take; zeros where the mask, with HAS_MASK, forbids to read."""
    tile = tl.load(cache_ptr + offsets, mask=mask, other=0) if HAS_MASK else tl.load(cache_ptr + offsets)
    if KV_FORMAT != 0:
        tile = float8.decode(tile, KV_FORMAT == 1)
    return tile
