"""Which worker gets what: examples to read, and properties of any use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.placement import (
    SEQUENCE_WEIGHT,
    SUSPECT_PATIENCE_NS,
    Move,
    NoWorkerError,
    Unit,
    WorkerView,
    place,
    plan_moves,
)


def worker(number: int, **values: object) -> WorkerView:
    defaults: dict[str, object] = {"away_ns": None, "proven": True, "num_blocks": 100, "free_rows": 8}
    return WorkerView(number=number, **{**defaults, **values})  # type: ignore[arg-type]


def unit(sequence_id: int = 1, **values: object) -> Unit:
    defaults: dict[str, object] = {"num_tokens": 160, "blocks_needed": 10, "cached": {}}
    return Unit(sequence_id=sequence_id, **{**defaults, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "one", "workers", "expected"),
    [
        ("the idle one", unit(), [worker(1, num_sequences=1), worker(2)], 2),
        ("the first of two alike", unit(), [worker(1), worker(2)], 1),
        ("of equals the emptier", unit(), [worker(1, num_free_blocks=9), worker(2, num_free_blocks=10)], 2),
        ("the one with less to compute", unit(), [worker(1, num_tokens=1000), worker(2, num_sequences=2)], 2),
        ("the one that has the prefix", unit(cached={2: 144}), [worker(1), worker(2, num_sequences=2)], 2),
        ("not at any price", unit(cached={2: 144}), [worker(1), worker(2, num_sequences=3)], 1),
        ("one that serves", unit(cached={1: 144}), [worker(1, away_ns=5), worker(2, num_sequences=50)], 2),
        ("one that it fits into", unit(), [worker(1, num_blocks=9), worker(2, num_sequences=50)], 2),
        ("the largest where it fits nowhere", unit(blocks_needed=999), [worker(1), worker(2, num_blocks=101)], 2),
        ("one whose queue takes more", unit(), [worker(1, free_queue=0), worker(2, num_sequences=50)], 2),
        (
            "one whose queue takes more tokens",
            unit(),
            [worker(1, num_waiting=1, free_queue_tokens=159), worker(2, num_sequences=50)],
            2,
        ),
        ("none where suspects are tried", unit(), [worker(1, num_suspects=1), worker(2, num_sequences=50)], 2),
        ("where suspects are tried if all else is away", unit(), [worker(1, num_suspects=1), worker(2, away_ns=1)], 1),
        ("one that is back from a loss, to try it", unit(), [worker(1, proven=False), worker(2, num_sequences=1)], 1),
        ("but one only", unit(), [worker(1, proven=False, num_sequences=1), worker(2, num_sequences=50)], 2),
        ("the last lost if none serves", unit(), [worker(1, away_ns=9), worker(2, away_ns=8, num_sequences=50)], 2),
    ],
)
def test_a_new_request_goes_to(what: str, one: Unit, workers: list[WorkerView], expected: int) -> None:
    assert place(one, workers) == expected, what


def test_without_any_worker_a_request_is_refused() -> None:
    with pytest.raises(NoWorkerError):
        place(unit(), [])


LOST, OLD = 1, SUSPECT_PATIENCE_NS
SUSPECT = unit(num_deaths=2, suspect=True)


@pytest.mark.parametrize(
    ("what", "one", "workers", "expected"),
    [
        ("from a lost worker to the one that serves", unit(), [worker(1, away_ns=LOST), worker(2)], 2),
        ("nowhere if none serves", unit(), [worker(1, away_ns=LOST), worker(2, away_ns=LOST)], None),
        ("nowhere if it fits nowhere", unit(), [worker(1, away_ns=LOST), worker(2, num_blocks=9)], None),
        (
            "what was in flight at a death not to an unproven one",
            unit(num_deaths=1),
            [worker(1, away_ns=LOST), worker(2, proven=False), worker(3, num_sequences=50)],
            3,
        ),
        ("a suspect not to the only one left", SUSPECT, [worker(1, away_ns=LOST, num_suspects=1), worker(2)], None),
        ("unless it has waited", SUSPECT, [worker(1, away_ns=OLD, num_suspects=1), worker(2)], 2),
        (
            "a suspect to the one with least to do",
            SUSPECT,
            [worker(1, away_ns=LOST, num_suspects=1), worker(2, num_sequences=1), worker(3)],
            3,
        ),
        (
            "a suspect to where others are tried",
            SUSPECT,
            [worker(1, away_ns=LOST, num_suspects=1), worker(2), worker(3, num_suspects=1, num_sequences=9)],
            3,
        ),
        ("suspects of two workers to one", SUSPECT, [worker(3, num_suspects=1), worker(2, num_suspects=1)], 2),
        ("others away from suspects", unit(), [worker(1, num_suspects=1), worker(2, num_sequences=50)], 2),
        ("not if there is only that worker", unit(), [worker(1, num_suspects=1), worker(2, away_ns=LOST)], None),
        ("to one that has room and is sooner", unit(), [worker(1, num_waiting=2, num_sequences=9), worker(2)], 2),
        (
            "not to one that has others waiting",
            unit(),
            [worker(1, num_waiting=2, num_sequences=9), worker(2, num_waiting=1, num_sequences=1)],
            None,
        ),
        ("not to one without a row", unit(), [worker(1, num_waiting=1, num_sequences=9), worker(2, free_rows=0)], None),
        (
            "not away from its prefix for a little",
            unit(cached={1: 144}),
            [worker(1, num_waiting=1, num_sequences=2, num_tokens=160), worker(2)],
            None,
        ),
    ],
)
def test_what_waits_moves(what: str, one: Unit, workers: list[WorkerView], expected: int | None) -> None:
    home = workers[0].number
    workers = [replace(workers[0], num_waiting=max(1, workers[0].num_waiting)), *workers[1:]]
    moves = plan_moves(workers, {home: [one]})
    assert moves == ([] if expected is None else [Move(1, home, expected)]), what


# -- properties ----------------------------------------------------------------------------------------------------


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[WorkerView], dict[int, list[Unit]]]:
    """Workers, and what waits at each. What they hold besides runs."""
    workers, waiting, next_id = [], {}, 1
    for number in range(1, draw(st.integers(1, 4)) + 1):
        units = []
        for _ in range(draw(st.integers(0, 4))):
            deaths = draw(st.sampled_from((0, 0, 0, 1, 2)))
            cached = draw(st.dictionaries(st.integers(1, 4), st.sampled_from((16, 160)), max_size=2))
            units.append(
                unit(
                    next_id,
                    num_tokens=draw(st.integers(1, 400)),
                    blocks_needed=draw(st.sampled_from((1, 5, 60))),
                    num_sequences=1 if deaths else draw(st.sampled_from((1, 1, 3))),
                    cached=cached,
                    num_deaths=deaths,
                    suspect=deaths == 2,
                )
            )
            next_id += 1
        running = draw(st.integers(0, 8))
        num_waiting = sum(one.num_sequences for one in units)
        workers.append(
            worker(
                number,
                away_ns=draw(st.sampled_from((None, None, None, LOST, OLD))),
                proven=draw(st.booleans()),
                num_blocks=draw(st.sampled_from((100, 100, 50))),
                free_rows=8 - running,
                num_sequences=running + num_waiting,
                num_waiting=num_waiting,
                num_suspects=sum(one.suspect for one in units),
                num_tokens=sum(one.num_tokens for one in units),
            )
        )
        waiting[number] = units
    return workers, waiting


def carried_out(
    workers: Sequence[WorkerView], waiting: Mapping[int, Sequence[Unit]], moves: Sequence[Move]
) -> tuple[list[WorkerView], dict[int, list[Unit]]]:
    """The fleet after the moves."""
    target = {move.sequence_id: move.target for move in moves}
    after: dict[int, list[Unit]] = {worker.number: [] for worker in workers}
    for number, units in waiting.items():
        for one in units:
            after[target.get(one.sequence_id, number)].append(one)
    views = []
    for view in workers:
        here, before = after[view.number], waiting[view.number]

        def change(count: str, here: Sequence[Unit] = here, before: Sequence[Unit] = before) -> int:
            return sum(getattr(one, count) for one in here) - sum(getattr(one, count) for one in before)

        views.append(
            replace(
                view,
                num_sequences=view.num_sequences + change("num_sequences"),
                num_waiting=view.num_waiting + change("num_sequences"),
                num_tokens=view.num_tokens + change("num_tokens"),
                num_suspects=view.num_suspects + change("suspect"),
            )
        )
    return views, after


_ROUNDS = 5


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(fleets())
def test_any_fleet_is_left_in_order(fleet: tuple[list[WorkerView], dict[int, list[Unit]]]) -> None:
    workers, waiting = fleet
    moves = plan_moves(workers, waiting)
    assert plan_moves(workers, waiting) == moves, "the same input gives the same moves"
    by_number = {view.number: view for view in workers}
    units = {one.sequence_id: one for queue in waiting.values() for one in queue}
    home = {one.sequence_id: number for number, queue in waiting.items() for one in queue}
    assert len({move.sequence_id for move in moves}) == len(moves), "nothing moves twice"
    for move in moves:
        target, one = by_number[move.target], units[move.sequence_id]
        assert move.source == home[move.sequence_id] != move.target
        assert target.serves and target.num_blocks >= one.blocks_needed
    views, after = carried_out(workers, waiting, moves)
    for _ in range(_ROUNDS):
        moves = plan_moves(views, after)
        views, after = carried_out(views, after, moves)
    assert moves == [], "things come to rest"

    serving = [view for view in views if view.serves]
    tried_at = [view.number for view in serving if any(one.suspect for one in after[view.number])]
    largest = max((view.num_blocks for view in serving), default=0)
    for view in views:
        for one in after[view.number]:
            roomy = [other for other in serving if other.num_blocks >= one.blocks_needed]
            free_of_suspects = [other for other in roomy if other.num_suspects == 0]
            if one.suspect:
                if not view.serves:
                    waits = len(roomy) < 2 and not (roomy and (view.away_ns or 0) >= SUSPECT_PATIENCE_NS)
                    assert waits, "it could be tried"
            elif not view.serves:
                assert not roomy, "it could run"
            elif view.num_suspects:
                assert not free_of_suspects, "it need not wait for suspects"
    if all(one.blocks_needed <= min(view.num_blocks for view in views) for one in units.values()) and largest:
        assert len(tried_at) <= 1, "suspects are tried at one worker"


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(fleets(), st.integers(1, 400), st.sampled_from((1, 5, 60)))
def test_any_new_request_finds_a_place(
    fleet: tuple[list[WorkerView], dict[int, list[Unit]]], num_tokens: int, blocks_needed: int
) -> None:
    workers, _ = fleet
    one = unit(999, num_tokens=num_tokens, blocks_needed=blocks_needed)
    chosen = next(view for view in workers if view.number == place(one, workers))
    fitting = [view for view in workers if view.num_blocks >= blocks_needed]
    if fitting:
        assert chosen in fitting
    if serving := [view for view in fitting if view.serves]:
        assert chosen.serves
        calm = [view for view in serving if not view.num_suspects]
        assert not calm or not chosen.num_suspects
        known = [view for view in calm if view.proven or not view.num_sequences]
        if known:
            assert one.cost(chosen) == min(one.cost(view) for view in known)


def test_a_live_sequence_weighs_as_much_as_some_prefill() -> None:
    assert worker(1, num_sequences=2, num_tokens=10).load == 2 * SEQUENCE_WEIGHT + 10
