"""Reference of rotary position embedding fused with the write of keys and values to the paged KV cache.

The rotation uses the halves layout of Hugging Face checkpoints: element i of a head pairs with element i + D/2.
"""

from __future__ import annotations

import torch

from kernels.reshape_and_cache_ref import reshape_and_cache


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D], cos and sin [T, D/2] in float32 -> the rotated heads, of x's shape and dtype."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [T, 1, D/2]: every head of a token turns alike
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Rotates q [T, H, D] and k [T, G, D] in place and writes k and v [T, G, D] to their slots.

    cos_sin [max positions, D]: cosines of D/2 angles, then their sines, float32; positions [T]; the rest as
    `reshape_and_cache_ref.reshape_and_cache` takes it.
    """
    cos, sin = cos_sin[positions.long()].chunk(2, dim=-1)
    q.copy_(rotate(q, cos, sin))
    k.copy_(rotate(k, cos, sin))
    reshape_and_cache(k, v, key_cache, value_cache, slot_mapping, k_scale, v_scale)
