"""Memory for packed weights: apart from each other, aligned, and alive as long as it is used."""

from __future__ import annotations

import gc
import itertools

from kernels.cpu.weight_memory import WeightMemory

MAPPING = 64 << 20


def test_parts_are_aligned_and_do_not_overlap() -> None:
    memory = WeightMemory()
    parts = [memory.take(size) for size in (1, 63, 64, 65, 1000, MAPPING // 2, MAPPING // 2, 7)]
    assert [part.numel() for part in parts] == [1, 63, 64, 65, 1000, MAPPING // 2, MAPPING // 2, 7]
    assert all(part.data_ptr() % 64 == 0 for part in parts)
    spans = sorted((part.data_ptr(), part.data_ptr() + part.numel()) for part in parts)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_small_layers_lie_one_behind_the_other_from_a_huge_page_on() -> None:
    memory = WeightMemory()
    first, second = memory.take(100), memory.take(100)
    assert first.data_ptr() % (2 << 20) == 0
    assert second.data_ptr() == first.data_ptr() + 128


def test_a_part_larger_than_a_mapping_gets_its_own() -> None:
    part = WeightMemory().take(MAPPING + 5)
    assert part.numel() == MAPPING + 5 and part.data_ptr() % (2 << 20) == 0
    part[-1] = 3  # it is there to the last byte
    assert part[-1] == 3 and part[-2] == 0


def test_a_part_outlives_what_handed_it_out() -> None:
    memory = WeightMemory()
    kept = memory.take(1 << 20)
    kept.fill_(5)
    memory.take(MAPPING)
    del memory
    gc.collect()
    WeightMemory().take(1 << 20).fill_(7)
    assert (kept == 5).all()
