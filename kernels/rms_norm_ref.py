"""Reference of RMS normalisation, alone and fused with the residual addition before it, in float32 inside."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., C], weight [C] -> x * rsqrt(mean(x^2) + eps) * weight, of x's shape and dtype."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """residual += x in place, then `rms_norm` of it. x, residual [T, C], weight [C] -> [T, C]."""
    residual.add_(x)
    return rms_norm(residual, weight, eps)
