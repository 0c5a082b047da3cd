"""Memory for the blocks that are swapped out of the KV cache.

A block is contiguous here, with its keys and values of all layers, so that a GPU swaps it with a single transfer and no
second copy within host memory. For a GPU the memory is page-locked: transfers run at the speed of the bus, and in the
order of the stream that asks for them without blocking it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch


def allocate_host_blocks(
    num_blocks: int, block_shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Blocks [num_blocks, *block_shape] in host memory, not initialised, for swapping with a device.

    Raises MemoryError if a GPU's driver does not lock that much memory.
    """
    blocks = torch.empty((num_blocks, *block_shape), dtype=dtype)
    if device.type == "cuda" and num_blocks:
        _page_lock(blocks)
    return blocks


def _page_lock(blocks: torch.Tensor) -> None:
    """Locks the tensor's pages for as long as it lives. torch's own page-locked tensors are cut from sizes rounded up
    to a power of two, which takes up to twice the memory that was asked for."""
    runtime = torch.cuda.cudart()
    address = blocks.data_ptr()
    code = int(runtime.cudaHostRegister(address, blocks.nbytes, 0))
    if code != 0:
        raise MemoryError(f"--swap-space: the GPU's driver cannot lock {blocks.nbytes} bytes (CUDA error {code})")
    weakref.finalize(blocks, runtime.cudaHostUnregister, address)
