"""The native linear layer against its reference, on sizes that are no multiple of the panel or the tile."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.ops import CpuOps
from kernels.cpu.packed_linear import PackedLinear
from kernels.linear_ref import linear
from kernels.quantize_int8 import dequantize_int8, quantize_int8
from tests.kernels.cases import ROUNDS_ACTIVATIONS, assert_near

ROWS = (1, 2, 3, 4, 7, 12, 13, 25, 64, 70, 97, 200)
STORAGE = [torch.float32, torch.bfloat16, torch.int8]
"""How a layer keeps its weights; int8 is quantised from what the test draws."""


def prepare(
    native: NativeLibrary, weight: torch.Tensor, bias: torch.Tensor | None, storage: torch.dtype, num_threads: int = 2
) -> PackedLinear:
    quantization = "int8" if storage is torch.int8 else "none"
    return CpuOps(native, num_threads=num_threads, quantization=quantization).prepare_linear(weight, bias)


def draw(n: int, k: int, storage: torch.dtype) -> torch.Tensor:
    return torch.randn(n, k).to(torch.float32 if storage is torch.int8 else storage)


def expected(
    native: NativeLibrary, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, storage: torch.dtype
) -> torch.Tensor:
    """The reference's result of what the layer multiplies: its quantised weights, and x rounded where it rounds x."""
    if storage is torch.int8:
        weight = dequantize_int8(*quantize_int8(weight))
    if storage is not torch.float32 and native.instruction_set in ROUNDS_ACTIVATIONS:
        x = x.bfloat16().float()
    return linear(x, weight, bias)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 3), (31, 64), (32, 17), (33, 100), (160, 63), (257, 513)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_matches_the_reference(native: NativeLibrary, storage: torch.dtype, n: int, k: int, with_bias: bool) -> None:
    weight = draw(n, k, storage)
    bias = torch.randn(n) if with_bias else None
    layer = prepare(native, weight, bias, storage)
    for rows in ROWS:
        x = torch.randn(rows, k)
        y = layer(x)
        assert_near(y, expected(native, x, weight, bias, storage))
        assert_near(y, linear(x, weight, bias), 2e-2)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("k", [639, 1281, 2049, 4500])
def test_deep_layers_are_summed_in_several_passes(native: NativeLibrary, storage: torch.dtype, k: int) -> None:
    weight, bias = draw(100, k, storage), torch.randn(100)
    layer = prepare(native, weight, bias, storage)
    for rows in (1, 2, 3, 7, 40):
        x = torch.randn(rows, k)
        assert_near(layer(x), expected(native, x, weight, bias, storage), 3e-5)


@pytest.mark.parametrize("storage", STORAGE)
def test_a_nan_stays_in_its_row(native: NativeLibrary, storage: torch.dtype) -> None:
    x = torch.randn(9, 33)
    x[4, 32] = float("nan")
    y = prepare(native, draw(70, 33, storage), None, storage)(x)
    assert y[4].isnan().all()
    assert not y[[0, 1, 2, 3, 5, 6, 7, 8]].isnan().any()


def test_a_channel_that_is_not_finite_stays_alone(native: NativeLibrary) -> None:
    weight = torch.randn(70, 33)
    weight[35, 7] = float("nan")
    y = prepare(native, weight, None, torch.int8)(torch.randn(9, 33))
    assert y[:, 35].isnan().all() and y.isnan().sum() == 9


def test_rows_of_x_may_lie_apart(ops: CpuOps) -> None:
    weight = torch.randn(40, 24)
    x = torch.randn(9, 100)[:, 30:54]
    assert_near(ops.prepare_linear(weight, None)(x), linear(x, weight))


def test_no_rows_give_no_rows(ops: CpuOps) -> None:
    assert ops.prepare_linear(torch.randn(40, 24), None)(torch.empty(0, 24)).shape == (0, 40)


@pytest.mark.parametrize("storage", STORAGE)
def test_the_weight_may_be_freed(native: NativeLibrary, storage: torch.dtype) -> None:
    weight, bias, x = draw(40, 24, storage), torch.randn(40), torch.randn(3, 24)
    layer = prepare(native, weight, bias, storage)
    before = layer(x)
    weight.zero_()
    bias.zero_()
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize(("n", "k"), [(70, 300), (1056, 97), (97, 2111)])
def test_a_row_has_the_same_bits_in_every_batch(native: NativeLibrary, storage: torch.dtype, n: int, k: int) -> None:
    weight, bias, x = draw(n, k, storage), torch.randn(n), torch.randn(230, k)
    layers = [prepare(native, weight, bias, storage, num_threads) for num_threads in (1, 2, 5)]
    alone = torch.cat([layers[0](row[None]) for row in x])
    for rows in (1, 2, 3, 5, 7, 12, 13, 64, 97, 230):
        for layer in layers:
            assert torch.equal(layer(x[:rows]), alone[:rows])
            assert torch.equal(layer(x[230 - rows :]), alone[230 - rows :])


@pytest.mark.parametrize(("storage", "bytes_per_weight"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.int8, 1)])
def test_a_layer_keeps_its_weights_and_little_else(
    native: NativeLibrary, storage: torch.dtype, bytes_per_weight: int
) -> None:
    layer = prepare(native, draw(640, 500, storage), None, storage)
    num_bytes = sum(tensor.nbytes for tensor in layer.tensors())
    assert 640 * 500 * bytes_per_weight <= num_bytes <= 640 * (500 * bytes_per_weight + 4)


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


@pytest.mark.parametrize("weight", [torch.randn(4, 4, dtype=torch.float16), torch.randn(4), torch.randn(4, 0)])
def test_refuses_what_is_no_weight(ops: CpuOps, weight: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"weight must be \[N, K\] in float32 or bfloat16, not empty"):
        ops.prepare_linear(weight, None)


def test_refuses_a_bias_that_does_not_fit(ops: CpuOps) -> None:
    with pytest.raises(ValueError, match=r"bias must be \[4\], got \[5\]"):
        ops.prepare_linear(torch.randn(4, 4), torch.randn(5))


def test_refuses_an_unknown_quantization(native: NativeLibrary) -> None:
    with pytest.raises(ValueError, match="quantization must be one of none, int8, got 'int4'"):
        CpuOps(native, num_threads=1, quantization="int4")
