"""Copies between KV cache blocks where no kernel takes a whole phase of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

Blocks = npt.NDArray[np.int32]

CopyBlocks = Callable[[torch.Tensor, Blocks, torch.Tensor, Blocks], None]
"""(from_blocks, sources, to_blocks, destinations), see `worker.backend.protocol.Backend.copy_blocks`."""


def copy_one_by_one(from_blocks: torch.Tensor, sources: Blocks, to_blocks: torch.Tensor, destinations: Blocks) -> None:
    """One strided copy per block over all layers. A gather and a scatter for the whole phase would move every byte
    twice and need room for all of them once more; on a CPU they are several times slower. Between a GPU and page-locked
    host memory each is a transfer of a contiguous block, in the order of the stream, that nobody waits for."""
    for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
        to_blocks[destination].copy_(from_blocks[source], non_blocking=True)
