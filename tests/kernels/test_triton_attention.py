"""Paged attention in Triton against its reference: compiled on a GPU, interpreted elsewhere."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernels.paged_attention_ref import paged_attention as reference
from tests.kernels.cases import AttentionCase, assert_near, make_attention_case
from tests.triton_mode import DEVICE

from kernels.triton.paged_attention import paged_attention  # isort: skip - after tests.triton_mode

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning")

FLOAT8 = torch.float8_e4m3fn
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}

# (number of queries, length): around the edges of blocks, tiles and ranges.
DECODE = [(1, length) for length in (1, 15, 16, 17, 31, 32, 33, 63, 513)]
PREFILL = [(length, length) for length in (1, 15, 16, 17, 31, 33, 63)]
CHUNKS = [(1, 1), (5, 63), (17, 513), (0, 40), (33, 70), (1, 130)]
MIXED = [(1, 513), (17, 33), (2, 63)]


def make(sequences: list[tuple[int, int]], dtype: torch.dtype = torch.float32, **geometry: int) -> AttentionCase:
    case = make_attention_case(sequences, dtype=dtype, **geometry).to(DEVICE)
    # A strided view of a projection in the cache's type.
    return dataclasses.replace(case, q=torch.stack((case.q, case.q), dim=1).to(dtype)[:, 0])


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(1, 1), (3, 1), (9, 1), (3, 3), (9, 3)])
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("sequences", [DECODE, PREFILL, CHUNKS], ids=["decode", "prefill", "chunks"])
def test_heads_and_windows(sequences: list[tuple[int, int]], window: int, query_heads: int, kv_heads: int) -> None:
    case = make(sequences, query_heads=query_heads, kv_heads=kv_heads, window=window)
    assert_near(case.call(paged_attention), case.call(reference, clean=True))


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
    case = make(MIXED, dtype, query_heads=4, kv_heads=2, head_dim=head_dim, block_size=block_size, window=window)
    expected = case.call(reference, clean=True, soft_cap=soft_cap)
    assert_near(case.call(paged_attention, soft_cap=soft_cap), expected, TOLERANCES[dtype])
