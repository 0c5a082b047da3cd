"""The ring of decisions."""

from __future__ import annotations

from scheduler.core.history import MAX_ENTRIES, Decision, DecisionKind, History


def test_entries_come_back_in_order_with_their_numbers() -> None:
    history = History()
    assert (history.entries, history.num_dropped) == ((), 0)
    history.record(1, DecisionKind.QUEUED, {})
    history.record(4, DecisionKind.ADMITTED, {"blocks": 7, "tokens": 96})
    assert history.entries == (
        Decision(1, DecisionKind.QUEUED, {}),
        Decision(4, DecisionKind.ADMITTED, {"blocks": 7, "tokens": 96}),
    )


def test_the_oldest_entries_go_and_are_counted() -> None:
    history = History()
    for step in range(MAX_ENTRIES + 5):
        history.record(step, DecisionKind.PREEMPTED, {})
    assert [entry.step_id for entry in history.entries] == list(range(5, MAX_ENTRIES + 5))
    assert history.num_dropped == 5
