"""RMS normalisation (interface; the kernel follows)."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, C] or [T, heads, C], dense but for the distance between tokens, weight [C] -> the same shape, dense."""
    raise NotImplementedError


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """residual += x in place, then rms_norm of it. x, residual [T, C] contiguous, weight [C] -> [T, C]."""
    raise NotImplementedError
