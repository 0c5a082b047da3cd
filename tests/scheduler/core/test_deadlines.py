"""Deadlines come back in order, at their time, and do not pile up."""

from __future__ import annotations

from scheduler.core.deadlines import Deadlines


def test_those_that_have_passed_come_back_earliest_first() -> None:
    deadlines = Deadlines()
    for sequence_id, deadline_ns in ((1, 30), (2, 10), (3, 20), (4, 31)):
        deadlines.add(deadline_ns, sequence_id, {1, 2, 3, 4}, 4)
    assert deadlines.earliest_ns == 10
    assert deadlines.pop_expired(9) == []
    assert deadlines.pop_expired(30) == [2, 3, 1]
    assert (deadlines.earliest_ns, len(deadlines)) == (31, 1)
    assert deadlines.pop_expired(31) == [4]
    assert deadlines.earliest_ns is None


def test_equal_deadlines_come_in_order_of_id() -> None:
    deadlines = Deadlines()
    for sequence_id in (3, 1, 2):
        deadlines.add(10, sequence_id, {1, 2, 3}, 3)
    assert deadlines.pop_expired(10) == [1, 2, 3]


def test_ended_ones_are_forgotten_when_they_are_too_many_and_live_ones_never() -> None:
    deadlines = Deadlines()
    deadlines.add(5, 1, {1}, 1)
    for sequence_id in range(2, 10_000):
        deadlines.add(10**9 - sequence_id, sequence_id, {1, sequence_id}, 2)
        assert len(deadlines) <= 2 * 2 + 64
    assert deadlines.pop_expired(6) == [1]
    assert 9_999 in deadlines.pop_expired(10**9)
