"""Reference of batched copies between blocks."""

from __future__ import annotations

import torch


def copy_blocks(source: torch.Tensor, destination: torch.Tensor, pairs: torch.Tensor) -> None:
    """destination[pairs[i, 1]] = source[pairs[i, 0]] for every i. source [N, ...], destination [N', ...], pairs [P, 2];
    no destination is named twice or is a source."""
    for from_block, to_block in pairs.tolist():
        destination[to_block] = source[from_block]
