"""The gated activation of a Llama MLP (interface; the kernel follows)."""

from __future__ import annotations

import torch


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 I] with contiguous rows -> silu(first half) * second half, [T, I] contiguous."""
    raise NotImplementedError
