"""The paged KV cache: the memory of keys and values, and copies between its blocks.

It knows nothing of sequences; which block belongs to whom is the scheduler's business. All layers live in one
allocation [2, L, N, G, B, D] (keys and values, layers, blocks, key/value heads, tokens per block, head size), so that a
phase of block copies is one gather and one scatter however many layers and blocks there are. Memory is not
initialised: a slot holds garbage until a step has written it, and no reader may look at one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


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


class KVCache:
    """Keys and values of every layer. keys[i], values[i]: [N, G, B, D], contiguous views of the one allocation."""

    def __init__(self, spec: KVCacheSpec, num_blocks: int, device: torch.device) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.device = device
        shape = (2, spec.num_layers, num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim)
        self._storage = torch.empty(shape, dtype=spec.dtype, device=device)
        self.keys = list(self._storage[0].unbind(0))
        self.values = list(self._storage[1].unbind(0))

    def copy_blocks(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copies source blocks to destinations, in all layers, as one phase: the two are disjoint, destinations
        distinct, and lengths equal."""
        if not sources:
            return
        source = torch.tensor(sources, dtype=torch.int64, device=self.device)
        destination = torch.tensor(destinations, dtype=torch.int64, device=self.device)
        self._storage.index_copy_(2, destination, self._storage.index_select(2, source))
