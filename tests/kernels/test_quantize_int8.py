"""int8 weights: how far they are from the originals, and what odd channels become."""

from __future__ import annotations

import pytest
import torch

from kernels.quantize_int8 import dequantize_int8, quantize_int8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_element_is_within_half_a_scale(dtype: torch.dtype) -> None:
    weight = (torch.randn(1500, 70) * torch.logspace(-3, 3, 1500)[:, None]).to(dtype)
    quantized, scales = quantize_int8(weight)
    assert quantized.dtype is torch.int8 and scales.dtype is torch.float32
    assert torch.equal(scales, weight.float().abs().amax(dim=1) / 127)
    assert torch.equal(quantized.abs().amax(dim=1), torch.full((1500,), 127, dtype=torch.int8))
    error = (dequantize_int8(quantized, scales) - weight.float()).abs()
    assert (error <= scales[:, None] * 0.5001).all()


def test_halves_round_to_even() -> None:
    quantized, scales = quantize_int8(torch.tensor([[127.0, 0.5, 1.5, -0.5, -2.5, -127.0]]))
    assert quantized.tolist() == [[127, 0, 2, 0, -2, -127]] and scales.tolist() == [1]


def test_channels_of_zeros_and_of_subnormals_stay_small() -> None:
    weight = torch.stack([torch.zeros(5), torch.full((5,), 1e-44)])
    quantized, scales = quantize_int8(weight)
    restored = dequantize_int8(quantized, scales)
    assert restored[0].tolist() == [0] * 5 and (restored[1] < 1e-40).all()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_shows_in_the_scale_of_its_channel_alone(value: float) -> None:
    weight = torch.randn(3, 8)
    weight[1, 4] = value
    _, scales = quantize_int8(weight)
    assert scales.isfinite().tolist() == [True, False, True]


@pytest.mark.parametrize("weight", [torch.randn(3), torch.empty(0, 4), torch.ones(2, 2, dtype=torch.int8)])
def test_refuses_what_is_no_weight(weight: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"weight must be \[N, K\] in floating point, not empty, got"):
        quantize_int8(weight)
