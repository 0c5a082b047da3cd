"""Block tables: what is found in the prefix cache, what an admission needs, and in which order blocks go."""

from __future__ import annotations

import pytest

from scheduler.core.block_manager import BlockManager
from scheduler.core.config import CoreConfig
from scheduler.core.live import LiveSequence, max_cached_tokens
from scheduler.core.sequence import SequenceSpec

PROMPT = tuple(range(1, 13))


def manager(num_blocks: int = 8, *, enable_prefix_caching: bool = True) -> BlockManager:
    return BlockManager(CoreConfig(num_blocks=num_blocks, block_size=4, enable_prefix_caching=enable_prefix_caching))


def sequence(prompt: tuple[int, ...] = PROMPT, *, salt: str = "") -> LiveSequence:
    return LiveSequence(SequenceSpec(sequence_id=1, prompt=prompt, max_tokens=4, cache_salt=salt), arrival=0)


def serve(blocks: BlockManager, prompt: tuple[int, ...] = PROMPT, *, salt: str = "") -> list[int]:
    """Admits a sequence, has its prompt computed, and releases it; returns the table that it had."""
    served = sequence(prompt, salt=salt)
    assert blocks.admit(served, 0) is not None
    served.num_computed = len(prompt)
    blocks.index(served, served.num_computed)
    table = served.blocks
    blocks.release(served)
    return table


@pytest.mark.parametrize(
    ("num_tokens", "block_size", "cached"),
    [(1, 4, 0), (4, 4, 0), (5, 4, 4), (8, 4, 4), (9, 4, 8), (3, 1, 2), (16, 16, 0), (17, 16, 16), (600, 16, 592)],
)
def test_a_fully_cached_prompt_still_computes_its_last_token(num_tokens: int, block_size: int, cached: int) -> None:
    assert max_cached_tokens(num_tokens, block_size) == cached


@pytest.mark.parametrize(
    ("prompt", "salt", "cached"),
    [
        (PROMPT, "", 8),
        ((*PROMPT, 99), "", 12),
        (PROMPT[:8], "", 4),
        (PROMPT[:3], "", 0),
        ((*PROMPT[:5], 99, *PROMPT[6:]), "", 4),
        ((99, *PROMPT[1:]), "", 0),
        (PROMPT, "salt", 0),
    ],
)
def test_the_longest_equal_prefix_with_an_equal_salt_is_found(prompt: tuple[int, ...], salt: str, cached: int) -> None:
    blocks = manager()
    table = serve(blocks)
    second = sequence(prompt, salt=salt)
    allocation = blocks.admit(second, 0)
    assert allocation is not None
    assert allocation.num_cached_tokens == cached
    assert second.blocks[: cached // 4] == table[: cached // 4]


def test_nothing_is_found_without_prefix_caching() -> None:
    blocks = manager(enable_prefix_caching=False)
    serve(blocks)
    assert blocks.pool.num_cached == 0
    allocation = blocks.admit(sequence(), 0)
    assert allocation is not None
    assert allocation.num_cached_tokens == 0


def test_a_tail_is_evicted_before_its_head() -> None:
    blocks = manager(num_blocks=4)
    table = serve(blocks)
    assert [blocks.prefix_cache.holds(block) for block in table] == [True, True, True]
    hog = sequence((21, 22, 23, 24, 25))
    assert blocks.admit(hog, 0) is not None
    assert [blocks.prefix_cache.holds(block) for block in table] == [True, True, False]
    assert blocks.append(hog, 9) is not None
    assert [blocks.prefix_cache.holds(block) for block in table] == [True, False, False]


def test_blocks_are_indexed_only_as_far_as_they_are_planned() -> None:
    blocks = manager()
    chunked = sequence()
    assert blocks.admit(chunked, 0) is not None
    chunked.num_computed = 7
    blocks.index(chunked, chunked.num_computed)
    assert [blocks.prefix_cache.holds(block) for block in chunked.blocks] == [True, False, False]


def test_what_may_derive_from_a_failed_sequence_is_found_no_more() -> None:
    blocks = manager(num_blocks=16)
    branch = serve(blocks, (*PROMPT[:4], 51, 52, 53, 54))
    other = serve(blocks, (61, 62, 63, 64))
    failed = sequence()
    assert blocks.admit(failed, 0) is not None
    assert failed.blocks[0] == branch[0]
    failed.num_computed = len(PROMPT)
    blocks.index(failed, failed.num_computed)
    blocks.distrust(failed)
    assert not any(blocks.prefix_cache.holds(block) for block in [*failed.blocks, *branch])
    assert blocks.prefix_cache.holds(other[0])
    assert (blocks.pool.num_cached, blocks.pool.num_referenced) == (1, 3)


def test_an_admission_leaves_the_watermark_available() -> None:
    blocks = manager(num_blocks=5)
    waiting = sequence()
    assert blocks.admit(waiting, 3) is None
    assert waiting.blocks == []
    assert blocks.pool.num_available == 5
    assert blocks.admit(waiting, 2) is not None
    assert blocks.pool.num_available == 2


def test_cached_blocks_that_are_hit_do_not_count_as_available() -> None:
    blocks = manager(num_blocks=4)
    serve(blocks)
    longer = sequence((*PROMPT, *range(21, 26)))
    assert blocks.pool.num_available == 4
    assert blocks.admit(longer, 0) is None, "3 hits and 2 more blocks, but only 1 is free besides the hits"
    assert blocks.pool.num_available == 4
    assert blocks.admit(sequence((*PROMPT, 21)), 0) is not None


def test_a_table_grows_all_or_nothing() -> None:
    blocks = manager(num_blocks=5)
    growing = sequence()
    assert blocks.admit(growing, 0) is not None
    within = blocks.append(growing, 12)
    assert within is not None
    assert within == []
    assert blocks.append(growing, 21) is None
    assert len(growing.blocks) == 3
    grown = blocks.append(growing, 13)
    assert grown is not None
    assert growing.blocks[3:] == grown
