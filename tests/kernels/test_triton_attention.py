"""Paged attention in Triton against its reference: compiled on a GPU, interpreted elsewhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kernels.paged_attention_ref import paged_attention as reference
from kernels.reshape_and_cache_ref import to_float8
from tests.kernels.cases import AttentionCase, assert_near, make_attention_case
from tests.triton_mode import DEVICE

pytest.importorskip("triton", reason="kernels for GPUs need it")
from kernels.triton.attention_tiles import MAX_SPLITS, decode_tile, split_tokens
from kernels.triton.device import A100, H100, Gpu, assume
from kernels.triton.paged_attention import paged_attention

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning")

TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}

# (number of queries, length): around the edges of blocks, tiles and ranges.
DECODE = [(1, length) for length in (1, 15, 16, 17, 31, 32, 33, 63, 513)]
PREFILL = [(length, length) for length in (1, 15, 16, 17, 31, 33, 63)]
CHUNKS = [(1, 1), (5, 63), (17, 513), (0, 40), (33, 70), (1, 130)]
MIXED = [(1, 513), (17, 33), (2, 63)]


def make(sequences: list[tuple[int, int]], dtype: torch.dtype = torch.float32, **geometry: int) -> AttentionCase:
    case = make_attention_case(sequences, dtype=dtype, **geometry).to(torch.device(DEVICE))
    # A strided view of a projection in the cache's type.
    return dataclasses.replace(case, q=torch.stack((case.q, case.q), dim=1).to(dtype)[:, 0])


def check(case: AttentionCase, **options: Any) -> None:
    expected = case.call(reference, clean=True, **options)
    assert_near(case.call(paged_attention, **options), expected, TOLERANCES[case.q.dtype])


@pytest.mark.parametrize(
    ("query_heads", "kv_heads", "window"),
    [(1, 1, 0), (3, 1, 20), (9, 1, 0), (3, 3, 0), (9, 3, 20)],
)
@pytest.mark.parametrize("sequences", [DECODE, PREFILL, CHUNKS], ids=["decode", "prefill", "chunks"])
def test_heads_and_windows(sequences: list[tuple[int, int]], query_heads: int, kv_heads: int, window: int) -> None:
    check(make(sequences, query_heads=query_heads, kv_heads=kv_heads, window=window))


@pytest.mark.parametrize(
    ("dtype", "head_dim", "block_size", "window", "soft_cap"),
    [
        (torch.bfloat16, 64, 16, 0, 0.0),
        (torch.bfloat16, 80, 32, 0, 0.0),
        (torch.float16, 96, 64, 40, 0.0),
        (torch.bfloat16, 128, 16, 0, 0.0),
        (torch.float16, 128, 32, 100, 2.0),
        (torch.bfloat16, 256, 16, 100, 2.0),
        (torch.float32, 80, 64, 0, 2.0),
        (torch.float32, 128, 16, 1, 0.0),
        (torch.float32, 256, 32, 200, 0.0),
    ],
)
def test_types_and_sizes(dtype: torch.dtype, head_dim: int, block_size: int, window: int, soft_cap: float) -> None:
    geometry = {"query_heads": 4, "kv_heads": 2, "head_dim": head_dim, "block_size": block_size, "window": window}
    check(make(MIXED, dtype, **geometry), soft_cap=soft_cap)


@pytest.mark.parametrize("gpu", [A100, H100], ids=["converted by bits", "converted by the hardware"])
@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float32, 64), (torch.bfloat16, 96)])
def test_float8_cache(gpu: Gpu, dtype: torch.dtype, head_dim: int) -> None:
    case = make(MIXED, dtype, query_heads=4, kv_heads=2, head_dim=head_dim)
    k_scale, v_scale = torch.tensor([[0.02, 0.5], [0.01, 3.0]], device=DEVICE)
    stored = [
        to_float8(cache.nan_to_num().transpose(1, 2).flatten(0, 1), scale)
        .view(torch.uint8)
        .unflatten(0, (-1, 16))
        .transpose(1, 2)
        .contiguous()
        .view(torch.float8_e4m3fn)
        for cache, scale in ((case.key_cache, k_scale), (case.value_cache, v_scale))
    ]
    case = dataclasses.replace(case, key_cache=stored[0], value_cache=stored[1])
    expected = case.call(reference, clean=True, k_scale=k_scale, v_scale=v_scale)
    with assume(gpu):
        out = case.call(paged_attention, k_scale=k_scale, v_scale=v_scale)
    assert_near(out, expected, max(TOLERANCES[dtype], 2e-3))  # both products are taken in float16


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.bfloat16, 128), (torch.float16, 80)])
def test_scores_computed_a_step_ahead(dtype: torch.dtype, head_dim: int) -> None:
    """As on Hopper, over three steps whose keys all queries see: the last one's look ahead finds none."""
    with assume(H100):
        check(make([(9, 210)], dtype, query_heads=2, head_dim=head_dim))


def test_large_scores_do_not_overflow() -> None:
    case = make([(1, 600), (20, 20)])
    case.q.mul_(100)
    assert_near(case.call(paged_attention), case.call(reference, clean=True), 1e-4)


def test_nan_stays_within_its_sequence() -> None:
    case = make([(1, 300), (1, 300), (9, 300)])
    case.key_cache[case.clean_tables[1, 3]] = float("nan")
    out = case.call(paged_attention)
    assert out[1].isnan().all()
    assert not out[0].isnan().any()
    assert not out[2:].isnan().any()


def test_a_padding_row_without_keys_gives_zeros() -> None:
    case = make([(1, 40), (1, 40)])
    case.seq_lens[1] = 0
    out = case.call(paged_attention)
    assert not out[0].isnan().any()
    assert (out[1] == 0).all()


def test_a_few_drafted_tokens_and_a_group_wider_than_the_smallest_tile() -> None:
    check(make([(5, 300), (4, 40), (1, 17)], query_heads=3))
    check(make([(1, 70), (2, 20)], query_heads=71))


@pytest.mark.parametrize("gpu", [A100, H100])
@pytest.mark.parametrize("programs", [1, 8, 100, 512, 3000])
@pytest.mark.parametrize("max_tokens", [1, 100, 4096, 131072])
def test_ranges_cover_the_context_in_few_enough_programs(gpu: Gpu, programs: int, max_tokens: int) -> None:
    tile = decode_tile(gpu, 4, 128, 2)
    tokens = split_tokens(gpu, tile, programs, max_tokens, 512)
    assert tokens % tile.block_n == 0
    assert 1 <= -(-max_tokens // tokens) <= MAX_SPLITS


def test_few_programs_are_split_and_short_contexts_are_not() -> None:
    tile = decode_tile(H100, 4, 128, 2)
    assert 131072 // split_tokens(H100, tile, 8, 131072, 512) >= H100.num_sms // 8
    assert split_tokens(H100, tile, 8, 200, 512) >= 200


@pytest.mark.parametrize(
    ("field", "replacement", "message"),
    [
        ("q", torch.zeros(1, 4, 32), "q must be"),
        ("q", torch.zeros(1, 3, 64), "q must be of up to 128 times 2 heads"),
        ("key_cache", torch.zeros(4, 2, 16, 64)[:, :, ::2], "key_cache must be"),
        ("seq_lens", torch.zeros(1, dtype=torch.int64), r"seq_lens must be \[1\] in torch.int32"),
        ("query_start_loc", torch.zeros(3, dtype=torch.int32), r"query_start_loc must be \[2\]"),
        ("block_tables", torch.zeros(2, 3, dtype=torch.int32), r"block_tables must be \[1, max blocks\]"),
        ("window", -1, "window and soft_cap must be 0"),
    ],
)
def test_refuses_what_it_cannot_read(field: str, replacement: Any, message: str) -> None:
    case = make([(1, 20)], query_heads=4, kv_heads=2)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(case, **{field: replacement}).call(paged_attention)
