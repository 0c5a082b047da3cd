"""Native paged attention against its reference, and the bits that exact mode promises."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytest
import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.ops import CpuOps
from kernels.paged_attention_ref import paged_attention
from tests.kernels.cases import ROUNDS_ACTIVATIONS, AttentionCase, assert_near, make_attention_case, native_keys

# (number of queries, length): decode, whole prompts and chunks around the edges of blocks, tiles and splits.
DECODE = [(1, length) for length in (1, 15, 16, 17, 31, 32, 33, 63, 256, 257, 513)]
PREFILL = [(length, length) for length in (1, 2, 15, 16, 17, 31, 33, 70)]
CHUNKS = [(1, 1), (5, 63), (16, 272), (3, 513), (0, 40), (47, 300), (1, 300)]


def assert_attends(native: NativeLibrary, case: AttentionCase, soft_cap: float = 0.0) -> None:
    """Like the reference, of rounded queries where the native op rounds them, and with them the softmax's weights."""
    rounds = case.key_cache.dtype is torch.bfloat16 and native.instruction_set in ROUNDS_ACTIVATIONS
    q = (case.q * case.scale).bfloat16().float() / case.scale if rounds else case.q
    expected = replace(case, q=q).call(functools.partial(paged_attention, soft_cap=soft_cap), clean=True)
    assert_near(case.call_native(CpuOps(native, num_threads=2), soft_cap), expected, 4e-3 if rounds else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("query_heads", "kv_heads"), [(1, 1), (3, 1), (9, 1), (3, 3), (9, 3)])
@pytest.mark.parametrize("sequences", [DECODE, PREFILL, CHUNKS], ids=["decode", "prefill", "chunks"])
@pytest.mark.parametrize("window", [0, 20])
def test_heads_and_windows(
    native: NativeLibrary,
    dtype: torch.dtype,
    query_heads: int,
    kv_heads: int,
    sequences: list[tuple[int, int]],
    window: int,
) -> None:
    case = make_attention_case(sequences, query_heads=query_heads, kv_heads=kv_heads, window=window, dtype=dtype)
    assert_attends(native, case)


@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 128])
@pytest.mark.parametrize("block_size", [1, 5, 16, 32, 48])
@pytest.mark.parametrize("window", [0, 1, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_head_and_block_sizes(
    native: NativeLibrary, dtype: torch.dtype, head_dim: int, block_size: int, window: int
) -> None:
    case = make_attention_case(
        [(1, 300), (40, 300)],
        query_heads=4,
        kv_heads=2,
        head_dim=head_dim,
        block_size=block_size,
        window=window,
        dtype=dtype,
    )
    assert_attends(native, case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_more_query_heads_than_a_query_block_has_rows(native: NativeLibrary, dtype: torch.dtype) -> None:
    case = make_attention_case([(1, 300), (3, 270)], query_heads=71, kv_heads=1, head_dim=64, dtype=dtype)
    assert_attends(native, case)


def test_large_scores_do_not_overflow(ops: CpuOps) -> None:
    case = make_attention_case([(1, 600), (20, 20)])
    case.q.mul_(100)
    assert_near(case.call_native(ops), case.call(paged_attention, clean=True), 1e-4)


@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
@pytest.mark.parametrize("spread", [0.01, 1.0, 20.0])  # scores where tanh is straight, bends and is flat
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_soft_cap_bounds_the_scores(
    native: NativeLibrary, dtype: torch.dtype, spread: float, soft_cap: float
) -> None:
    case = make_attention_case([(7, 280), (1, 33)], query_heads=3, window=200, dtype=dtype)
    case.q.mul_(spread)
    assert_attends(native, case, soft_cap)


def test_nan_stays_within_its_sequence(ops: CpuOps) -> None:
    case = make_attention_case([(1, 300), (1, 300), (9, 300)])
    case.key_cache[case.clean_tables[1, 3]] = float("nan")
    out = case.call_native(ops)
    assert out[1].isnan().all()
    assert not out[0].isnan().any()
    assert not out[2:].isnan().any()


def attend(ops: CpuOps, case: AttentionCase, sequence: int, first: int, last: int, q: torch.Tensor) -> torch.Tensor:
    """The queries at positions first..last-1 of one sequence as a step of their own. q [its length, H, D]."""
    return ops.attention(
        q[first:last],
        native_keys(case.key_cache),
        case.value_cache,
        torch.tensor([0, last - first], dtype=torch.int32),
        torch.tensor([last], dtype=torch.int32),
        case.block_tables[sequence : sequence + 1],
        case.scale,
        case.window,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 20, 300])
@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(9, 3, 64), (1, 1, 80)])
def test_same_bits_however_a_prompt_is_cut(
    native: NativeLibrary, dtype: torch.dtype, window: int, query_heads: int, kv_heads: int, head_dim: int
) -> None:
    length = 530
    case = make_attention_case(
        [(length, length)],
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        dtype=dtype,
    )
    one, two = CpuOps(native, num_threads=1), CpuOps(native, num_threads=2)
    whole = case.call_native(one)
    assert torch.equal(case.call_native(two), whole)
    for size, ops in ((7, one), (16, one), (100, two), (257, two)):
        cuts = [*range(0, length, size), length]
        chunks = [attend(ops, case, 0, a, b, case.q) for a, b in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(chunks), whole)
    for positions, ops in (([*range(40), *range(250, 290), *range(500, length)], one), ([0, 31, 256, length - 1], two)):
        decoded = [attend(ops, case, 0, p, p + 1, case.q) for p in positions]
        assert torch.equal(torch.cat(decoded), whole[positions])


@pytest.mark.parametrize("window", [0, 100])
def test_same_bits_alone_and_among_others(ops: CpuOps, window: int) -> None:
    sequences = [(1, 700), (70, 70), (1, 5), (33, 400), (1, 257), (0, 9), (2, 513)]
    case = make_attention_case(sequences, query_heads=6, kv_heads=2, window=window)
    together = case.call_native(ops)
    starts = case.query_start_loc.tolist()
    for index, (queries, length) in enumerate(sequences):
        rows = slice(starts[index], starts[index + 1])
        q = torch.zeros(length, *case.q.shape[1:])
        q[length - queries :] = case.q[rows]
        assert torch.equal(attend(ops, case, index, length - queries, length, q), together[rows])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seq_lens", 3, "seq_lens be between"),
        ("seq_lens", 10_000, "seq_lens be between"),
        ("query_start_loc", 9, "must rise from 0 to 10"),
        ("block_tables", 10_000, "block outside 0"),
        ("block_tables", -1, "block outside 0"),
    ],
)
def test_refuses_values_out_of_range(ops: CpuOps, field: str, value: int, message: str) -> None:
    case = make_attention_case([(10, 40)])
    getattr(case, field).view(-1)[-1 if field == "query_start_loc" else 0] = value
    with pytest.raises(ValueError, match=message):
        case.call_native(ops)


@pytest.mark.parametrize("soft_cap", [-1.0, float("inf"), float("nan")])
def test_refuses_a_soft_cap_that_is_none(ops: CpuOps, soft_cap: float) -> None:
    with pytest.raises(ValueError, match="soft_cap must be 0"):
        make_attention_case([(1, 4)]).call_native(ops, soft_cap)


def test_refuses_a_head_size_without_a_kernel(ops: CpuOps) -> None:
    with pytest.raises(ValueError, match="size a multiple of 16"):
        make_attention_case([(1, 4)], head_dim=24).call(ops.attention)
