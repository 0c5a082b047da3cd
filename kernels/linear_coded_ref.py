"""Reference of weights in 12 bits (cpu/dot_product.h), as x86-64-v4-bf16 keeps those in bfloat16."""

from __future__ import annotations

import torch

PANEL = 32
"""Channels that share a range of exponents."""


def _least(panel: torch.Tensor) -> torch.Tensor:
    """The smallest magnitude of channels [n, K] that has a code: 2^-12 or 2^-13 of the largest's power of two.

    Exponents, as stored, come in pairs of an even one and the next; zero and the seven pairs up to the largest have
    codes.
    """
    _, exponent = torch.frexp(panel.double().abs().amax())
    pair = torch.clamp((exponent + 126) // 2, min=7)
    return torch.ldexp(torch.ones((), dtype=torch.float64), 2 * (pair - 6) - 127)


def coded_weight(weight: torch.Tensor) -> torch.Tensor:
    """weight [N, K] bfloat16 -> what is kept of it, float32: the smallest are rounded to zero or the least code."""
    panels = []
    for panel in weight.double().split(PANEL):
        least = _least(panel)
        rounded = torch.where(panel.abs() > least / 2, panel.sign() * least, 0)
        panels.append(torch.where(panel.abs() >= least, panel, rounded))
    return torch.cat(panels).float()


def fits(weight: torch.Tensor) -> bool:
    """Whether no channel loses more than 2^-10 of its norm. All must be finite, and below 2^127."""
    if not weight.isfinite().all() or weight.abs().amax() >= 2.0**127:
        return False
    lost = (weight.double() - coded_weight(weight).double()).norm(dim=1)
    return bool((lost <= 2.0**-10 * weight.double().norm(dim=1)).all())
