"""Write of keys and values to the paged cache, without rotation (interface; the kernel follows)."""

from __future__ import annotations

import torch


def reshape_and_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Writes k and v [T, G, D] to slots slot_mapping [T] int64 of the caches [N, G, B, D]; a negative one is skipped."""
    raise NotImplementedError
