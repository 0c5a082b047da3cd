"""The native linear layer against its reference, on sizes that are no multiple of the panel or the tile."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.ops import CpuOps
from kernels.linear_ref import linear
from tests.kernels.cases import assert_near

ROWS = (1, 2, 3, 4, 7, 12, 13, 25, 64, 70, 97, 200)
ROUNDS_ACTIVATIONS = ("x86-64-v4-bf16",)  # instruction sets with bfloat16 dot products


def as_read(ops: CpuOps, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x as the layer multiplies it: rounded to bfloat16 where both sides of the product have to be."""
    rounds = weight.dtype is torch.bfloat16 and ops.instruction_set in ROUNDS_ACTIVATIONS
    return x.bfloat16().float() if rounds else x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 3), (31, 64), (32, 17), (33, 100), (160, 63), (257, 513)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_matches_the_reference(ops: CpuOps, dtype: torch.dtype, n: int, k: int, with_bias: bool) -> None:
    weight = torch.randn(n, k).to(dtype)
    bias = torch.randn(n) if with_bias else None
    layer = ops.prepare_linear(weight, bias)
    for rows in ROWS:
        x = torch.randn(rows, k)
        y = layer(x)
        assert_near(y, linear(as_read(ops, x, weight), weight, bias))
        assert_near(y, linear(x, weight, bias), 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [2047, 2048, 2049, 4500])
def test_deep_layers_are_summed_in_several_passes(ops: CpuOps, dtype: torch.dtype, k: int) -> None:
    weight, bias = torch.randn(100, k).to(dtype), torch.randn(100)
    layer = ops.prepare_linear(weight, bias)
    for rows in (1, 2, 3, 7, 40):
        x = torch.randn(rows, k)
        assert_near(layer(x), linear(as_read(ops, x, weight), weight, bias), 3e-5)


def test_a_nan_stays_in_its_row(ops: CpuOps) -> None:
    weight, x = torch.randn(70, 33).bfloat16(), torch.randn(9, 33)
    x[4, 32] = float("nan")
    y = ops.prepare_linear(weight, None)(x)
    assert y[4].isnan().all()
    assert not y[[0, 1, 2, 3, 5, 6, 7, 8]].isnan().any()


def test_rows_of_x_may_lie_apart(ops: CpuOps) -> None:
    weight = torch.randn(40, 24)
    x = torch.randn(9, 100)[:, 30:54]
    assert_near(ops.prepare_linear(weight, None)(x), linear(x, weight))


def test_no_rows_give_no_rows(ops: CpuOps) -> None:
    assert ops.prepare_linear(torch.randn(40, 24), None)(torch.empty(0, 24)).shape == (0, 40)


def test_the_weight_may_be_freed(ops: CpuOps) -> None:
    weight, bias, x = torch.randn(40, 24), torch.randn(40), torch.randn(3, 24)
    expected = linear(x, weight, bias)
    layer = ops.prepare_linear(weight, bias)
    weight.zero_()
    bias.zero_()
    assert_near(layer(x), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k"), [(70, 300), (1056, 97), (97, 2111)])
def test_a_row_has_the_same_bits_in_every_batch(native: NativeLibrary, dtype: torch.dtype, n: int, k: int) -> None:
    weight, bias, x = torch.randn(n, k).to(dtype), torch.randn(n), torch.randn(230, k)
    one = CpuOps(native, num_threads=1).prepare_linear(weight, bias)
    two = CpuOps(native, num_threads=2).prepare_linear(weight, bias)
    expected = torch.cat([one(row[None]) for row in x])
    for rows in (1, 2, 3, 5, 7, 12, 13, 64, 97, 230):
        assert torch.equal(one(x[:rows]), expected[:rows])
        assert torch.equal(two(x[230 - rows :]), expected[230 - rows :])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(2, 23), r"x must be \[T, 24\] in float32"),
        (torch.randn(2, 24, dtype=torch.float64), "float64"),
        (torch.randn(24, 2).T, "contiguous rows"),
    ],
)
def test_refuses_what_it_cannot_read(ops: CpuOps, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.prepare_linear(torch.randn(40, 24), None)(x)


def test_refuses_a_weight_or_bias_that_does_not_fit(ops: CpuOps) -> None:
    with pytest.raises(ValueError, match=r"weight must be \[N, K\] in float32 or bfloat16"):
        ops.prepare_linear(torch.randn(4, 4, dtype=torch.float16), None)
    with pytest.raises(ValueError, match=r"bias must be \[4\], got \[5\]"):
        ops.prepare_linear(torch.randn(4, 4), torch.randn(5))
