"""The Gumbel noise of `worker.philox`, for many rows at once, in torch on any device.

The random words are the same bit for bit. The logarithms are the device's own, so that noise may differ in its last
bit between devices.
"""

from __future__ import annotations

import torch

from worker.philox import MASK, MULTIPLIER_0, MULTIPLIER_1, PURPOSE_TOKEN, ROUNDS, WEYL_0, WEYL_1

_GROUP = 1024
"""Tokens whose noise comes from the same 256 counters: four words each, 256 tokens apart."""


def gumbel(width: int, seeds_low: torch.Tensor, seeds_high: torch.Tensor, output_index: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise [R, width] float32 of all token ids, for rows of (seed, output index).

    seeds_low, seeds_high, output_index [R] int64: the halves of the seed, and the index modulo 2**32.
    """
    rows, groups = seeds_low.shape[0], -(-width // _GROUP)
    counters = torch.arange(groups * (_GROUP // 4), dtype=torch.int64, device=seeds_low.device)
    words = _philox(counters[None], output_index[:, None], seeds_low[:, None], seeds_high[:, None])
    lanes = [word.expand(rows, -1).view(rows, groups, 1, _GROUP // 4) for word in words]
    uniform = (torch.cat(lanes, dim=2).view(rows, -1)[:, :width] >> 9).to(torch.float32)
    uniform.add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _philox(
    x0: torch.Tensor, x1: torch.Tensor, k0: torch.Tensor, k1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four words of counters (x0, x1, PURPOSE_TOKEN, 0) under keys (k0, k1): 32-bit values in int64, broadcast.

    A product of two such values wraps around, and its bits are those of the unsigned product.
    """
    x2, x3 = torch.full_like(x1, PURPOSE_TOKEN), torch.zeros_like(x1)
    for _ in range(ROUNDS):
        product_0, product_1 = x0 * MULTIPLIER_0, x2 * MULTIPLIER_1
        x0 = (product_1 >> 32) & MASK ^ x1 ^ k0
        x2 = (product_0 >> 32) & MASK ^ x3 ^ k1
        x1, x3 = product_1 & MASK, product_0 & MASK
        k0, k1 = (k0 + WEYL_0) & MASK, (k1 + WEYL_1) & MASK
    return x0, x1, x2, x3
