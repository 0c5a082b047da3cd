"""What writes to the paged KV cache in Triton (rotary embedding, plain writes, copies between blocks) against its
references."""

from __future__ import annotations

import pytest
import torch

from kernels import copy_blocks_ref, reshape_and_cache_ref, rotary_ref
from tests.kernels.cases import assert_near
from tests.triton_mode import DEVICE

pytest.importorskip("triton", reason="kernels for GPUs need it")
from kernels.triton.copy_blocks import copy_blocks
from kernels.triton.reshape_and_cache import reshape_and_cache
from kernels.triton.rope_and_cache import rope_and_cache

FLOAT8 = torch.float8_e4m3fn
TOKENS, BLOCKS, POSITIONS = 7, 5, 50


def projection(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    sizes = [heads, kv_heads, kv_heads]
    return list(torch.randn(TOKENS, sum(sizes), head_dim).to(DEVICE, dtype).split(sizes, dim=1))


def caches(kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Keys and values [2, N, G, B, D]."""
    filled = torch.randn(2, BLOCKS, kv_heads, block_size, head_dim)
    return filled.to(DEVICE).to(dtype)


def some_slots(block_size: int) -> torch.Tensor:
    return torch.randperm(BLOCKS * block_size)[:TOKENS].to(DEVICE)


@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "head_dim", "block_size", "tolerance"),
    [
        (torch.float32, 9, 3, 64, 16, 1e-5),
        (torch.float32, 1, 1, 80, 32, 1e-5),
        (torch.bfloat16, 9, 1, 96, 64, 2e-2),
        (torch.float16, 3, 3, 128, 16, 5e-3),
        (torch.bfloat16, 33, 3, 256, 16, 2e-2),
    ],
)
def test_rope_and_cache(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, block_size: int, tolerance: float, float8: bool
) -> None:
    q, k, v = projection(heads, kv_heads, head_dim, dtype)
    expected_q, expected_k = q.clone(), k.clone()
    cos_sin = torch.randn(POSITIONS, head_dim, device=DEVICE)
    positions = torch.randint(POSITIONS, (TOKENS,), dtype=torch.int32).to(DEVICE)
    cache = caches(kv_heads, block_size, head_dim, FLOAT8 if float8 else dtype)
    expected, slots = cache.clone(), some_slots(block_size)
    scales = [torch.rand(kv_heads, device=DEVICE) + 0.01 for _ in range(2)] if float8 else [None, None]
    rotary_ref.rope_and_cache(expected_q, expected_k, v, cos_sin, positions, expected[0], expected[1], slots, *scales)
    rope_and_cache(q, k, v, cos_sin, positions, cache[0], cache[1], slots, *scales)
    assert_near(q, expected_q, tolerance)
    assert_near(k, expected_k, tolerance)
    assert_near(cache, expected, 0.13 if float8 else tolerance)  # a step of e4m3 is an eighth of the value


@pytest.mark.parametrize("scale", [None, 0.25])
def test_reshape_and_cache_and_the_slots_of_padding(scale: float | None) -> None:
    _, k, v = projection(1, 3, 80, torch.bfloat16)
    cache = caches(3, 16, 80, torch.bfloat16 if scale is None else FLOAT8)
    expected, slots = cache.clone(), some_slots(16)
    scales = [torch.full((3,), scale, device=DEVICE)] * 2 if scale else [None, None]
    reshape_and_cache_ref.reshape_and_cache(k[:5], v[:5], expected[0], expected[1], slots[:5], *scales)
    slots[5:] = -1
    reshape_and_cache(k, v, cache[0], cache[1], slots, *scales)
    assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))


def test_float8_rounds_to_nearest_even_and_clamps() -> None:
    """Every finite e4m3 value, the ties between neighbours, and what lies beyond, as torch converts them."""
    finite = torch.arange(127, dtype=torch.uint8).view(FLOAT8).float()
    ties = (finite[1:] + finite[:-1]) / 2
    beyond = torch.tensor([449.0, 1e9, float("inf"), float("nan")])
    values = torch.cat((finite, ties, torch.nextafter(ties, finite[1:]), beyond))
    values = torch.cat((values, -values))
    values = torch.nn.functional.pad(values, (0, -len(values) % 64)).view(-1, 1, 64).to(DEVICE)
    tokens = len(values)
    cache = torch.zeros(2, -(-tokens // 16), 1, 16, 64, device=DEVICE).to(FLOAT8)
    ones, slots = torch.ones(1, device=DEVICE), torch.arange(tokens, device=DEVICE)
    reshape_and_cache(values, values, cache[0], cache[1], slots, ones, ones)
    written = cache[0].view(-1, 64)[:tokens].float()
    torch.testing.assert_close(
        written, reshape_and_cache_ref.to_float8(values, ones)[:, 0].float(), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FLOAT8])
def test_copy_blocks(dtype: torch.dtype) -> None:
    """Within the cache of all layers, where a block's layers lie apart, and to blocks that are dense."""
    layers, kv_heads, block_size, head_dim = 2, 3, 16, 100
    values = torch.randn(2, layers, 6, kv_heads, block_size, head_dim).to(DEVICE).to(dtype)
    cache = values.movedim(2, 0)  # [N, 2, L, G, B, D]
    other = torch.zeros(4, 2, layers, kv_heads, block_size, head_dim, device=DEVICE).to(dtype)
    for destination, pairs in ((cache, [[0, 3], [2, 5], [0, 1]]), (other, [[5, 0], [3, 2]])):
        expected = destination.clone().view(torch.uint8)
        plan = torch.tensor(pairs, device=DEVICE)
        copy_blocks_ref.copy_blocks(cache.view(torch.uint8), expected, plan)
        copy_blocks(cache, destination, plan)
        assert torch.equal(destination.contiguous().view(torch.uint8), expected.contiguous())
    copy_blocks(cache, other, torch.empty((0, 2), dtype=torch.int64, device=DEVICE))


def test_refuses_what_it_cannot_read() -> None:
    q, k, v = projection(2, 2, 64, torch.float32)
    cache, slots = caches(2, 16, 64, torch.float32), some_slots(16)
    scale = torch.ones(2, device=DEVICE)
    with pytest.raises(ValueError, match=r"key_cache must be \[N, G, B, D\] .* torch.float8_e4m3fn with k_scale"):
        reshape_and_cache(k, v, cache[0], cache[1], slots, scale, scale)
    with pytest.raises(ValueError, match=r"v_scale must be \[2\] in float32"):
        reshape_and_cache(k, v, *(c.to(FLOAT8) for c in cache), slots, scale)
    with pytest.raises(ValueError, match="k must be of 2 heads as the KV cache is"):
        reshape_and_cache(k[:, :1], v, cache[0], cache[1], slots)
    with pytest.raises(ValueError, match=r"slot_mapping must be \[7\] in torch.int64"):
        reshape_and_cache(k, v, cache[0], cache[1], slots.int())
    with pytest.raises(ValueError, match=r"positions must be \[7\] in torch.int32"):
        rope_and_cache(q, k, v, torch.ones(9, 64, device=DEVICE), slots, cache[0], cache[1], slots)
    blocks = cache.movedim(0, 1)[:, :, None]
    with pytest.raises(ValueError, match=r"pairs must be \[P, 2\] in int64"):
        copy_blocks(blocks, blocks, slots)
