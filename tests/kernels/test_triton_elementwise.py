"""RMS normalisation and the gated activation in Triton against their references."""

from __future__ import annotations

import pytest
import torch

from kernels import rms_norm_ref, silu_and_mul_ref
from tests.kernels.cases import assert_near
from tests.triton_mode import DEVICE

pytest.importorskip("triton", reason="kernels for GPUs need it")
from kernels.triton.rms_norm import add_rms_norm, rms_norm
from kernels.triton.silu_and_mul import silu_and_mul

SIZES = (1, 15, 17, 33, 63, 513, 2100)
TOLERANCES = [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 2e-2)]


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("channels", SIZES)
def test_rms_norm(channels: int, dtype: torch.dtype, tolerance: float) -> None:
    x, residual = random(3, channels, dtype=dtype), random(3, channels, dtype=dtype)
    weight = random(channels, dtype=dtype)
    assert_near(rms_norm(x, weight, 1e-5), rms_norm_ref.rms_norm(x, weight, 1e-5), tolerance)
    expected_residual = residual.clone()
    expected = rms_norm_ref.add_rms_norm(x, expected_residual, weight, 1e-5)
    assert_near(add_rms_norm(x, residual, weight, 1e-5), expected, tolerance)
    assert_near(residual, expected_residual, tolerance)


@pytest.mark.parametrize(("heads", "head_dim"), [(3, 80), (9, 64), (1, 256)])
def test_rms_norm_of_heads_in_a_fused_projection(heads: int, head_dim: int) -> None:
    x = random(7, heads + 2, head_dim, dtype=torch.float32)[:, 1 : 1 + heads]
    weight = random(head_dim, dtype=torch.float32)
    assert_near(rms_norm(x, weight, 1e-6), rms_norm_ref.rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("size", SIZES)
def test_silu_and_mul(size: int, dtype: torch.dtype, tolerance: float) -> None:
    gate_up = random(3, 2 * size + 5, dtype=dtype)[:, : 2 * size] * 8
    assert_near(silu_and_mul(gate_up), silu_and_mul_ref.silu_and_mul(gate_up), tolerance)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_silu_at_the_ends_of_exp() -> None:
    gate = torch.tensor([[-1e4, -200.0, -88.0, -0.0, 0.0, 88.0, 1e4, float("nan"), float("inf")]], device=DEVICE)
    out = silu_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    torch.testing.assert_close(out, torch.nn.functional.silu(gate), rtol=1e-5, atol=1e-30, equal_nan=True)


def test_no_rows() -> None:
    assert silu_and_mul(random(0, 8, dtype=torch.float32)).shape == (0, 4)
    assert rms_norm(random(0, 8, dtype=torch.float32), random(8, dtype=torch.float32), 1e-5).shape == (0, 8)


def test_refuses_what_it_cannot_read() -> None:
    x, weight = random(2, 8, dtype=torch.float32), random(8, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"rms_norm: weight must be \[8\]"):
        rms_norm(x, weight[:7], 1e-5)
    with pytest.raises(ValueError, match="rms_norm: x must be dense but for its first dimension"):
        rms_norm(x.T, weight, 1e-5)
    with pytest.raises(ValueError, match=r"add_rms_norm: residual must be \[2, 8\]"):
        add_rms_norm(x, x[:1], weight, 1e-5)
    with pytest.raises(ValueError, match=r"silu_and_mul: gate_up must be \[T, 2 I\]"):
        silu_and_mul(x[:, :7])
