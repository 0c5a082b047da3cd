"""Reference of the linear layer in integers (cpu/integer_product.h): x86-64-v3, v4 over bfloat16 and int8 weights."""

from __future__ import annotations

import torch

GROUP = 192
"""Neighbours in K that share a scale of x."""


def shifted_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [N, K] -> (integers [N, K] of 255 * 2^6 at most, scales [N]), float64: weight is about their product.

    A channel's scale is 2^-13 of the power of two below its largest magnitude; rounding is to nearest even.
    """
    _, exponent = torch.frexp(weight.double().abs().amax(dim=1))
    scales = torch.ldexp(torch.ones(len(weight), dtype=torch.float64), exponent - 14)
    return (weight.double() / scales[:, None]).round(), scales


def fits(weight: torch.Tensor) -> bool:
    """Whether three quarters of each channel, zeros aside, are 2^-7 or more of its largest power of two.

    That itself must be 2^-113 or more: what turns smaller weights into integers is no float32.
    """
    if not weight.isfinite().all():
        return False
    _, exponents = torch.frexp(weight.double())
    some = weight != 0
    top = exponents.where(some, -1000).amax(dim=1)
    small = (some & (exponents + 7 < top[:, None])).sum(dim=1)
    return bool(((4 * small <= some.sum(dim=1)) & (top >= -112) | (top == -1000)).all())


def linear_integer(
    x: torch.Tensor, integers: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [T, K] float32, weight [N, K] = integers * scales[:, None], bias [N] or None -> [T, N] float32.

    A group of x is scaled so that it fits 16 bits and, times the longest channel's part, 32.
    """
    y = torch.zeros(len(x), len(integers), dtype=torch.float64)
    for begin in range(0, x.shape[1], GROUP):
        part, weights = x[:, begin : begin + GROUP], integers[:, begin : begin + GROUP].double()
        longest = weights.norm(dim=1).amax().clamp(min=1).float()
        limit = 2**31 * (1 - 2**-10) / longest - 7
        largest, length = part.abs().amax(dim=1), part.double().norm(dim=1).float()
        factors = torch.minimum(limit / length, 32767 / largest)
        factors = torch.where(largest >= 2**-110, factors, 0)[:, None]
        y += (part * factors).round().double() @ weights.T / factors.where(factors > 0, 1)
    y = y * scales.double()
    return (y if bias is None else y + bias.double()).float()
