"""The batched torch attention against its reference."""

from __future__ import annotations

import pytest
import torch

from kernels import paged_attention_torch
from kernels.paged_attention_ref import paged_attention
from tests.kernels.cases import assert_near, make_attention_case


@pytest.mark.parametrize("window", [0, 1, 20, 300])
@pytest.mark.parametrize(("query_heads", "kv_heads"), [(1, 1), (9, 3)])
@pytest.mark.parametrize(
    "sequences",
    [
        [(1, 1), (1, 16), (1, 513), (1, 33)],
        [(1, 1), (17, 17), (70, 70)],
        [(5, 63), (1, 300), (0, 40), (16, 272), (1, 2)],
        [(2, 2)],
    ],
)
def test_matches_the_reference(sequences: list[tuple[int, int]], query_heads: int, kv_heads: int, window: int) -> None:
    case = make_attention_case(sequences, query_heads=query_heads, kv_heads=kv_heads, window=window)
    assert_near(case.call(paged_attention_torch.paged_attention), case.call(paged_attention, clean=True))


@pytest.mark.parametrize("q_dtype", [torch.float32, torch.bfloat16])
def test_a_bfloat16_cache(q_dtype: torch.dtype) -> None:
    case = make_attention_case([(1, 100), (30, 60)], dtype=torch.bfloat16)
    q = case.q.to(q_dtype)
    arguments = (case.key_cache, case.value_cache, case.query_start_loc, case.seq_lens)
    out = paged_attention_torch.paged_attention(q, *arguments, case.block_tables, case.scale, 0)
    assert out.dtype is q_dtype
    expected = paged_attention(q, *arguments, case.clean_tables, case.scale, 0)
    assert_near(out, expected, 2e-2 if q_dtype is torch.bfloat16 else 1e-5)
