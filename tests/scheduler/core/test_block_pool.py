"""The states of a block, and which block is handed out next."""

from __future__ import annotations

from scheduler.core.block_pool import BlockPool


def keep_all(_block: int) -> bool:
    return True


def keep_none(_block: int) -> bool:
    return False


def counts(pool: BlockPool) -> tuple[int, int, int]:
    assert pool.num_free + pool.num_cached + pool.num_referenced == pool.num_blocks
    return pool.num_free, pool.num_cached, pool.num_referenced


def test_taking_is_all_or_nothing() -> None:
    pool = BlockPool(3, list[int]().extend)
    assert pool.take(4) is None
    assert counts(pool) == (3, 0, 0)
    assert pool.take(3) == [0, 1, 2]
    assert pool.take(1) is None
    assert pool.take(0) == []
    assert counts(pool) == (0, 0, 3)


def test_free_blocks_go_first_then_cached_ones_least_recently_released_first() -> None:
    evicted: list[int] = []
    pool = BlockPool(5, evicted.extend)
    pool.take(4)
    pool.release([2, 0], keep_all)
    pool.release([3], keep_all)
    assert counts(pool) == (1, 3, 1)
    assert pool.take(1) == [4]
    assert evicted == []
    assert pool.take(3) == [2, 0, 3]
    assert evicted == [2, 0, 3]


def test_a_shared_block_is_released_by_the_last_who_names_it() -> None:
    pool = BlockPool(2, list[int]().extend)
    pool.take(1)
    pool.share([0])
    assert pool.references(0) == 2
    pool.release([0], keep_all)
    assert counts(pool) == (1, 0, 1)
    pool.release([0], keep_all)
    assert counts(pool) == (1, 1, 0)


def test_sharing_a_cached_block_saves_it_from_eviction_and_renews_it() -> None:
    pool = BlockPool(3, list[int]().extend)
    pool.take(3)
    pool.release([0, 1, 2], keep_all)
    pool.share([0])
    assert not pool.is_cached(0)
    pool.release([0], keep_all)
    assert pool.take(3) == [1, 2, 0]


def test_a_block_without_a_known_prefix_is_free_at_once() -> None:
    evicted: list[int] = []
    pool = BlockPool(2, evicted.extend)
    pool.take(2)
    pool.release([0, 1], keep_none)
    assert counts(pool) == (2, 0, 0)
    pool.take(2)
    assert evicted == []


def test_uncaching_frees_a_cached_block_and_leaves_a_referenced_one() -> None:
    pool = BlockPool(2, list[int]().extend)
    pool.take(2)
    pool.release([0], keep_all)
    pool.uncache(0)
    pool.uncache(1)
    assert counts(pool) == (1, 0, 1)
