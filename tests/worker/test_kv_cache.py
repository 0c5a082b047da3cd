"""Copies between device blocks and host blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worker.kv_cache import KVCache, KVCacheSpec

CPU = torch.device("cpu")
SPECS = {
    "float32": KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4, dtype=torch.float32),
    "bfloat16": KVCacheSpec(num_layers=1, num_kv_heads=3, head_dim=16, block_size=2, dtype=torch.bfloat16),
}
SPEC = SPECS["float32"]


def filled(spec: KVCacheSpec = SPEC, num_host_blocks: int = 4) -> tuple[KVCache, list[torch.Tensor]]:
    """A cache of 6 device blocks, and per block a copy [2 L, G, B, D] of its random content over all layers."""
    cache = KVCache(spec, 6, CPU, num_host_blocks)
    generator = torch.Generator().manual_seed(0)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return cache, contents(cache)


def blocks(*columns: list[int]) -> list[np.ndarray]:
    return [np.array(column, np.int32) for column in columns]


def contents(cache: KVCache) -> list[torch.Tensor]:
    return list(torch.stack([*cache.keys, *cache.values]).movedim(1, 0).clone())


def assert_holds(cache: KVCache, before: list[torch.Tensor], sources: list[int]) -> None:
    """Block i holds what block sources[i] held before."""
    for index, (block, source) in enumerate(zip(contents(cache), sources, strict=True)):
        assert torch.equal(block, before[source]), f"block {index} is not what block {source} was"


def test_geometry() -> None:
    cache = KVCache(SPEC, 5, CPU)
    assert len(cache.keys) == len(cache.values) == 3
    assert all(tensor.shape == (5, 2, 4, 8) and tensor.is_contiguous() for tensor in (*cache.keys, *cache.values))
    assert 5 * SPEC.bytes_per_block == sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_copy_on_write_copies_whole_blocks_of_every_layer(spec: KVCacheSpec) -> None:
    cache, before = filled(spec)
    cache.copy_on_write(*blocks([4, 0, 4], [1, 5, 2]))
    cache.copy_on_write(*blocks([], []))
    assert_holds(cache, before, [0, 4, 4, 3, 4, 0])


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_what_was_swapped_out_comes_back_elsewhere(spec: KVCacheSpec) -> None:
    cache, before = filled(spec)
    cache.swap_out(*blocks([5, 0], [2, 3]))
    cache.swap_out(*blocks([1], [0]))
    for tensor in (*cache.keys, *cache.values):
        tensor[[0, 1, 5]] = torch.nan
    cache.swap_in(*blocks([3, 2, 0], [1, 0, 5]))
    assert_holds(cache, before, [5, 0, 2, 3, 4, 1])


def test_host_blocks_keep_what_they_hold_until_they_are_written_again() -> None:
    cache, before = filled(num_host_blocks=1)
    cache.swap_out(*blocks([3], [0]))
    cache.swap_in(*blocks([0], [1]))
    cache.copy_on_write(*blocks([0], [3]))
    cache.swap_in(*blocks([0, 0], [2, 4]))
    cache.swap_out(*blocks([5], [0]))
    cache.swap_in(*blocks([0], [1]))
    assert_holds(cache, before, [0, 5, 3, 0, 3, 5])


def test_a_later_phase_sees_what_an_earlier_one_wrote() -> None:
    cache, before = filled()
    # Block 2 moves out; block 4, out before, moves into its place; and that is copied over block 5.
    cache.swap_out(*blocks([4], [1]))
    cache.copy_on_write(*blocks([3], [4]))
    cache.swap_out(*blocks([2], [0]))
    cache.swap_in(*blocks([1], [2]))
    cache.copy_on_write(*blocks([2], [5]))
    assert_holds(cache, before, [0, 1, 4, 3, 3, 4])
    # Out and straight back in: the chain within one plan.
    cache.swap_out(*blocks([0], [2]))
    cache.swap_in(*blocks([2], [3]))
    cache.copy_on_write(*blocks([3], [1]))
    assert_holds(cache, before, [0, 0, 4, 0, 3, 4])


def test_the_layers_read_what_was_swapped_in() -> None:
    cache, _ = filled()
    key, value = cache.keys[2][1].clone(), cache.values[2][1].clone()
    cache.swap_out(*blocks([1], [0]))
    cache.swap_in(*blocks([0], [4]))
    assert torch.equal(cache.keys[2][4], key) and torch.equal(cache.values[2][4], value)
