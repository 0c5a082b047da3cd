"""Host blocks are taken all or nothing, and come back."""

from __future__ import annotations

from scheduler.core.host_pool import HostPool


def test_taking_is_all_or_nothing() -> None:
    pool = HostPool(3)
    assert pool.take(4) is None
    assert pool.num_free == 3
    assert pool.take(2) == [0, 1]
    assert pool.take(2) is None
    assert pool.num_free == 1
    assert pool.take(0) == []


def test_what_is_released_is_handed_out_again() -> None:
    pool = HostPool(3)
    taken = pool.take(3)
    assert taken is not None
    pool.release(taken[1:])
    assert pool.num_free == 2
    assert pool.take(2) == [1, 2]
    assert pool.num_free == 0


def test_no_host_blocks_decline_everything() -> None:
    pool = HostPool(0)
    assert pool.take(1) is None
    assert (pool.num_blocks, pool.num_free) == (0, 0)
