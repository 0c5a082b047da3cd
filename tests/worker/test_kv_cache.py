"""Block copies of the KV cache."""

from __future__ import annotations

import torch

from worker.kv_cache import KVCache, KVCacheSpec

SPEC = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4, dtype=torch.float32)


def test_geometry() -> None:
    cache = KVCache(SPEC, 5, torch.device("cpu"))
    assert len(cache.keys) == len(cache.values) == 3
    assert all(tensor.shape == (5, 2, 4, 8) and tensor.is_contiguous() for tensor in (*cache.keys, *cache.values))
    assert 5 * SPEC.bytes_per_block == sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))


def test_copies_move_whole_blocks_of_every_layer() -> None:
    cache = KVCache(SPEC, 6, torch.device("cpu"))
    tensors = (*cache.keys, *cache.values)
    for index, tensor in enumerate(tensors):
        tensor.copy_(100 * index + torch.arange(6)[:, None, None, None].expand(6, 2, 4, 8))
    cache.copy_blocks([4, 0, 4], [1, 5, 2])
    cache.copy_blocks([], [])
    for index, tensor in enumerate(tensors):
        assert tensor[:, 0, 0, 0].tolist() == [100 * index + block for block in (0, 4, 4, 3, 4, 0)]
        assert bool((tensor == tensor[:, :1, :1, :1]).all())
