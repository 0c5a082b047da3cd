"""RMS normalisation and the gated activation against their references, and the same bits wherever an element stands."""

from __future__ import annotations

import pytest
import torch

from kernels import rms_norm_ref, silu_and_mul_ref
from kernels.cpu.library import NativeLibrary
from kernels.cpu.ops import CpuOps
from tests.kernels.cases import assert_near

SIZES = (1, 15, 16, 17, 31, 33, 63, 64, 65, 513, 576)


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(ops: CpuOps, channels: int, dtype: torch.dtype) -> None:
    weight = torch.randn(channels).to(dtype)
    for rows in (1, 2, 70):
        x = torch.randn(rows, channels) * 3
        assert_near(ops.rms_norm(x, weight, 1e-5), rms_norm_ref.rms_norm(x, weight, 1e-5))


def test_rms_norm_of_heads_in_a_fused_projection(ops: CpuOps) -> None:
    fused = torch.randn(7, 500)
    heads = fused[:, 20:320].view(7, 3, 100)
    weight = torch.randn(100)
    assert_near(ops.rms_norm(heads, weight, 1e-6), rms_norm_ref.rms_norm(heads, weight, 1e-6))


@pytest.mark.parametrize("channels", SIZES)
def test_add_rms_norm(ops: CpuOps, channels: int) -> None:
    weight = torch.randn(channels)
    for rows in (1, 70):
        x, residual = torch.randn(rows, channels), torch.randn(rows, channels)
        expected_residual = residual.clone()
        expected = rms_norm_ref.add_rms_norm(x, expected_residual, weight, 1e-5)
        assert_near(ops.add_rms_norm(x, residual, weight, 1e-5), expected)
        assert torch.equal(residual, expected_residual)


@pytest.mark.parametrize("size", SIZES)
def test_silu_and_mul(ops: CpuOps, size: int) -> None:
    for rows in (1, 3, 70):
        gate_up = torch.randn(rows, 2 * size) * 8
        assert_near(ops.silu_and_mul(gate_up), silu_and_mul_ref.silu_and_mul(gate_up))


def test_silu_at_the_ends_of_exp(ops: CpuOps) -> None:
    gate = torch.tensor([[-1e4, -200.0, -88.0, -87.0, -0.0, 0.0, 87.0, 88.0, 200.0, 1e4, float("nan"), float("inf")]])
    out = ops.silu_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    torch.testing.assert_close(out, torch.nn.functional.silu(gate), rtol=1e-6, atol=1e-30, equal_nan=True)


def test_rows_have_the_same_bits_in_every_batch(native: NativeLibrary) -> None:
    one, two = CpuOps(native, num_threads=1), CpuOps(native, num_threads=2)
    x, weight = torch.randn(90, 1153), torch.randn(1153)
    norms = torch.cat([one.rms_norm(row[None], weight, 1e-5) for row in x])
    assert torch.equal(two.rms_norm(x, weight, 1e-5), norms)
    assert torch.equal(two.add_rms_norm(x, torch.zeros_like(x), weight, 1e-5), norms)
    gate_up = torch.randn(90, 2 * 333)
    products = torch.cat([one.silu_and_mul(row[None]) for row in gate_up])
    assert torch.equal(two.silu_and_mul(gate_up), products)


def test_an_element_has_the_same_bits_in_body_and_tail(ops: CpuOps) -> None:
    gate, up = torch.randn(2, 1, 37)
    whole = ops.silu_and_mul(torch.cat((gate, up), dim=1))
    single = ops.silu_and_mul(torch.cat((gate.T, up.T), dim=1))  # every element alone in its row, all in the tail
    assert torch.equal(whole, single.T)


def test_refuses_what_it_cannot_read(ops: CpuOps) -> None:
    x, weight = torch.randn(2, 8), torch.randn(8)
    with pytest.raises(ValueError, match=r"rms_norm: weight must be \[8\]"):
        ops.rms_norm(x, torch.randn(7), 1e-5)
    with pytest.raises(ValueError, match="rms_norm: x must be in float32 and dense"):
        ops.rms_norm(torch.randn(8, 2).T, weight, 1e-5)
    with pytest.raises(ValueError, match=r"add_rms_norm: residual must be \[2, 8\]"):
        ops.add_rms_norm(x, torch.randn(3, 8), weight, 1e-5)
    with pytest.raises(ValueError, match=r"silu_and_mul: gate_up must be \[T, 2 I\]"):
        ops.silu_and_mul(torch.randn(2, 7))
