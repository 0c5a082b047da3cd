"""Symmetric int8 weights with one scale per output channel, for layers whose activations stay as they are.

A channel's largest magnitude becomes 127; rounding is to nearest even, so that an element is off by half a scale at
most. It is the weights' half of what section 2.1 of LLM.int8() (Dettmers et al., 2022) calls absmax quantisation.
"""

from __future__ import annotations

import torch

_LARGEST = 127
_CHANNELS = 1024  # converted at a time, so that a large weight needs little memory beside itself


def quantize_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [N, K] of any floating dtype -> (int8 [N, K], scales [N] float32), weight about int8 * scales[:, None].

    A channel that is not finite has a scale that is not finite, and so have its results. Raises ValueError for another
    shape or dtype.
    """
    if weight.dim() != 2 or weight.numel() == 0 or not weight.is_floating_point():
        raise ValueError(
            f"quantize_int8: weight must be [N, K] in floating point, not empty, got {list(weight.shape)} in "
            f"{weight.dtype}"
        )
    quantized = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(weight.shape[0])
    for begin in range(0, weight.shape[0], _CHANNELS):
        rows = slice(begin, begin + _CHANNELS)
        channels = weight[rows].float()
        scales[rows] = channels.abs().amax(dim=1) / _LARGEST
        divisors = torch.where((scales[rows] > 0) & scales[rows].isfinite(), scales[rows], 1.0)
        rounded = (channels / divisors[:, None]).round_().nan_to_num_()
        quantized[rows] = rounded.clamp_(-_LARGEST, _LARGEST)  # of a subnormal scale, the quotient can be larger
    return quantized, scales


def dequantize_int8(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(int8 [N, K], scales [N]) -> float32 [N, K]."""
    return weight.float() * scales[:, None]
