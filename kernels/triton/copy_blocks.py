"""Batched copies between blocks (interface; the kernel follows)."""

from __future__ import annotations

import torch


def copy_blocks(source: torch.Tensor, destination: torch.Tensor, pairs: torch.Tensor) -> None:
    """destination[pairs[i, 1]] = source[pairs[i, 0]] for every i, in one launch.

    source [N, 2, L, G, B, D] and destination [N', 2, L, G, B, D] of one dtype, any strides of the first three
    dimensions, the last three contiguous: KVCache._blocks (device) or its host blocks, which must be page-locked memory
    that the device can address. They may be the same tensor. pairs [P, 2] int64 on the device that runs the copy; no
    destination is named twice or is a source.
    """
    raise NotImplementedError
