"""Reference of the write of keys and values to the paged KV cache, in the model's type or in float8 e4m3.

In float8 a head's values are stored over its scale, so that 448, the largest finite e4m3, times the scale covers them.
"""

from __future__ import annotations

import torch


def to_float8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x [T, G, D], scale [G] float32 -> x over its head's scale in float8_e4m3fn, clamped to the finite values."""
    return (x.float() / scale[:, None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)


def reshape_and_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Writes k and v [T, G, D] to slots slot_mapping [T] = block * B + offset of the caches [N, G, B, D], every slot
    named once. k_scale, v_scale [G] float32 are given with caches in float8_e4m3fn."""
    block_size = key_cache.shape[2]
    blocks = torch.div(slot_mapping, block_size, rounding_mode="floor")
    offsets = slot_mapping % block_size
    for x, cache, scale in ((k, key_cache, k_scale), (v, value_cache, v_scale)):
        if scale is None:
            cache[blocks, :, offsets] = x.to(cache.dtype)
        else:
            cache.view(torch.uint8)[blocks, :, offsets] = to_float8(x, scale).view(torch.uint8)
