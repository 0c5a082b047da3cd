"""Rotary embedding and the cache write against their reference, on strided views of a fused projection."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.ops import CpuOps
from kernels.rotary_ref import rope_and_cache
from tests.kernels.cases import assert_near, native_keys

MAX_POSITIONS = 300


def make_inputs(
    tokens: int, query_heads: int, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """fused projection, cos_sin, positions, caches [2, N, G, B, D] of NaN, slot_mapping."""
    num_blocks = -(-tokens // block_size) + 2
    angles = torch.rand(MAX_POSITIONS, head_dim // 2) * 6
    return (
        torch.randn(tokens, (query_heads + 2 * kv_heads) * head_dim),
        torch.cat((angles.cos(), angles.sin()), dim=1),
        torch.randint(0, MAX_POSITIONS, (tokens,), dtype=torch.int32),
        torch.full((2, num_blocks, kv_heads, block_size, head_dim), float("nan"), dtype=dtype),
        torch.randperm(num_blocks * block_size)[:tokens],
    )


def split(fused: torch.Tensor, query_heads: int, kv_heads: int, head_dim: int) -> list[torch.Tensor]:
    heads = fused.view(fused.shape[0], query_heads + 2 * kv_heads, head_dim)
    return list(heads.split([query_heads, kv_heads, kv_heads], dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [2, 16, 64, 80, 128])
@pytest.mark.parametrize(("query_heads", "kv_heads"), [(1, 1), (3, 1), (9, 3)])
@pytest.mark.parametrize(("tokens", "block_size"), [(1, 16), (17, 32), (70, 16)])
def test_matches_the_reference(
    ops: CpuOps, dtype: torch.dtype, head_dim: int, query_heads: int, kv_heads: int, tokens: int, block_size: int
) -> None:
    fused, cos_sin, positions, caches, slots = make_inputs(tokens, query_heads, kv_heads, head_dim, block_size, dtype)
    expected_fused, expected_caches = fused.clone(), caches.clone()
    parts = split(expected_fused, query_heads, kv_heads, head_dim)
    rope_and_cache(*parts, cos_sin, positions, expected_caches[0], expected_caches[1], slots)
    expected_caches[0] = native_keys(expected_caches[0])
    parts = split(fused, query_heads, kv_heads, head_dim)
    ops.rope_and_cache(*parts, cos_sin, positions, caches[0], caches[1], slots)
    assert_near(fused, expected_fused)
    assert torch.equal(caches.isnan(), expected_caches.isnan())  # the slots named, and no others
    written = ~caches.isnan()
    # One rounding to bfloat16 may fall to the other side where the float32 values differ in their last bit.
    assert_near(caches[written], expected_caches[written], 1e-5 if dtype is torch.float32 else 8e-3)


def test_rounds_to_bfloat16_as_torch_does(ops: CpuOps) -> None:
    values = torch.tensor(
        [1.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, float("inf"), -float("inf"), float("nan"), 1e-40]
    )
    v = torch.cat((values, torch.randn(7))).view(1, 1, 16)
    caches = torch.zeros(2, 1, 1, 1, 16, dtype=torch.bfloat16)
    positions, slots = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    q, k = torch.randn(2, 1, 1, 16)
    ops.rope_and_cache(q, k, v, torch.randn(1, 16), positions, caches[0], caches[1], slots)
    assert torch.equal(caches[1].view(16).nan_to_num(7.0), v.view(16).bfloat16().nan_to_num(7.0))
    assert caches[1].view(16).isnan().tolist() == v.view(16).isnan().tolist()


def test_a_token_has_the_same_bits_in_every_batch(native: NativeLibrary) -> None:
    fused, cos_sin, positions, caches, slots = make_inputs(120, 9, 3, 80, 16, torch.float32)
    one, two = CpuOps(native, num_threads=1), CpuOps(native, num_threads=2)
    alone, alone_caches = fused.clone(), caches.clone()
    for t in range(120):
        parts = split(alone[t : t + 1], 9, 3, 80)
        one.rope_and_cache(
            *parts, cos_sin, positions[t : t + 1], alone_caches[0], alone_caches[1], slots[t : t + 1].clone()
        )
    two.rope_and_cache(*split(fused, 9, 3, 80), cos_sin, positions, caches[0], caches[1], slots)
    assert torch.equal(fused, alone)
    assert torch.equal(caches.nan_to_num(7.0), alone_caches.nan_to_num(7.0))


@pytest.mark.parametrize(("position", "slot", "message"), [(300, 0, "position is outside 0..299"), (0, 64, "0..63")])
def test_refuses_values_out_of_range_and_writes_nothing(ops: CpuOps, position: int, slot: int, message: str) -> None:
    fused, cos_sin, positions, caches, slots = make_inputs(20, 3, 1, 16, 16, torch.float32)
    positions[-1], slots[-1] = position, slot
    before = fused.clone()
    with pytest.raises(ValueError, match=message):
        ops.rope_and_cache(*split(fused, 3, 1, 16), cos_sin, positions, caches[0], caches[1], slots)
    assert torch.equal(fused, before)
    assert caches.isnan().all()


def test_refuses_tensors_that_do_not_fit(ops: CpuOps) -> None:
    fused, cos_sin, positions, caches, slots = make_inputs(20, 3, 1, 16, 16, torch.float32)
    q, k, v = split(fused, 3, 1, 16)
    with pytest.raises(ValueError, match=r"positions must be \[20\] in int32"):
        ops.rope_and_cache(q, k, v, cos_sin, positions.long(), caches[0], caches[1], slots)
    with pytest.raises(ValueError, match=r"slot_mapping must be \[20\] in int64"):
        ops.rope_and_cache(q, k, v, cos_sin, positions, caches[0], caches[1], slots.int())
    with pytest.raises(ValueError, match=r"q must be \[20, heads, 16\] in float32 with dense heads"):
        ops.rope_and_cache(q.transpose(1, 2), k, v, cos_sin, positions, caches[0], caches[1], slots)
