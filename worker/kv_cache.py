"""The paged KV cache: the memory of keys and values, the host blocks beside it, and copies between blocks.

It knows nothing of sequences; which block belongs to whom is the scheduler's business. All layers live in one
allocation [2, L, N, G, B, D] (keys and values, layers, blocks, key/value heads, tokens per block, head size), so that a
layer's keys and values are contiguous. Memory is not initialised: a slot holds garbage until a step has written it, and
no reader may look at one before.

Copies are in the order of the device's current stream, like the model's reads and writes: each sees what the calls
before it wrote, and nothing has to be waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.backend.block_copies import Blocks, CopyBlocks, copy_one_by_one
from worker.host_blocks import allocate_host_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """Geometry of a block over all layers."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block's keys and values over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.block_size * self.head_dim * self.dtype.itemsize


KVScales = tuple[torch.Tensor, torch.Tensor]
"""Of a layer's keys and values, each [G] float32 on the device: what is stored times its head's scale is the value."""


class KVCache:
    """Keys and values of every layer. keys[i], values[i]: [N, G, B, D], contiguous views of the one allocation.
    key_scales[i], value_scales[i]: KVScales of a layer, None where the values are stored as they are.

    A phase of copies takes blocks sources[i] to destinations[i], in all layers: lengths are equal, destinations are
    distinct, and none is a source.
    """

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        device: torch.device,
        num_host_blocks: int = 0,
        *,
        copy_blocks: CopyBlocks = copy_one_by_one,
        scales: Sequence[KVScales] | None = None,
    ) -> None:
        """copy_blocks: the backend's. scales: one pair per layer for a spec in float8, None for another."""
        if (spec.dtype.itemsize == 1) != (scales is not None):
            raise ValueError(f"a KV cache in {spec.dtype} {'has' if scales is not None else 'lacks'} scales")
        self.spec = spec
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.device = device
        shape = (2, spec.num_layers, num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim)
        storage = torch.empty(shape, dtype=spec.dtype, device=device)
        self.keys = list(storage[0].unbind(0))
        self.values = list(storage[1].unbind(0))
        self._blocks = storage.movedim(2, 0)  # [N, 2, L, G, B, D], a view
        self._host_blocks = allocate_host_blocks(num_host_blocks, self._blocks.shape[1:], spec.dtype, device)
        self._copy_blocks = copy_blocks
        layers = [(None, None)] * spec.num_layers if scales is None else scales
        self.key_scales = [keys for keys, _ in layers]
        self.value_scales = [values for _, values in layers]

    def swap_out(self, sources: Blocks, destinations: Blocks) -> None:
        """A phase of copies from device blocks to host blocks."""
        self._copy_blocks(self._blocks, sources, self._host_blocks, destinations)

    def swap_in(self, sources: Blocks, destinations: Blocks) -> None:
        """A phase of copies from host blocks to device blocks."""
        self._copy_blocks(self._host_blocks, sources, self._blocks, destinations)

    def copy_on_write(self, sources: Blocks, destinations: Blocks) -> None:
        """A phase of copies from device blocks to device blocks."""
        self._copy_blocks(self._blocks, sources, self._blocks, destinations)
