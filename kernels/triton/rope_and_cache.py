"""Rotary embedding fused with the cache write (interface; the kernel follows)."""

from __future__ import annotations

import torch


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
    """Rotates q [T, H, D] and k [T, G, D] in place, writes k and v [T, G, D] to their slots.

    Strides as in the protocol. cos_sin [max positions, D] float32, positions [T] int32, slot_mapping [T] int64; a
    negative slot (a padding row) is not written. k_scale, v_scale [G] float32 with float8_e4m3fn caches, else None.
    """
    raise NotImplementedError
