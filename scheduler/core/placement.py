"""Which worker's core a sequence waits in: the pure layer above the cores, one of which each worker has.

A request goes to the worker that gets to its first token soonest, as far as that can be said: the one with the least
left to compute, the request's own tokens that it has not cached included. It is held in that worker's core, where all
the rules of waiting apply. What waits can still move:

- from a worker that does not serve, at once, to those that do; if none does it stays, and the first that comes gets it;
- from a worker that has its hands full to one that has nothing waiting and would get to it sooner;
- a suspect (see `suspects.py`) to a worker that is tried on nothing else, and everybody else away from that one. A
  suspect waits for a second worker to be there before it takes the only one, but not for ever.

A worker that has given no result since it was last lost is not trusted with much: it gets one request at a time, and
none that was in flight at a death, while there are others.

All functions are pure: views in, decisions out, in an order that depends on the arguments alone. What they decide is an
input of the cores (`add_group`, `withdraw`, `adopt`) and recorded there, so each core replays by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler.core.errors import SchedulerError

SEQUENCE_WEIGHT: Final = 64
"""Tokens of prefill that weigh as much as a live sequence, which takes a share of every step until its end."""

SUSPECT_PATIENCE_NS: Final = 10_000_000_000
"""How long a suspect whose worker is gone leaves the only one that is left to the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker as placement sees it.

    number: in the order in which they joined. away_ns: for how long it has not served, None while it does: it has a
    session and is not on its way out. proven: it has given a result since it was last lost, or was never lost.
    num_blocks: of its pool. num_free_blocks: of those, that hold nothing, not even a cached prefix. free_rows: that no
    sequence holds. num_sequences: live ones. num_waiting: those that wait.
    num_suspects: those that must run alone. num_tokens: to be computed of all its sequences before they decode.
    free_queue: sequences that its queue still takes. free_queue_tokens: prompt tokens that it still takes beside
    others, None if there is no limit.
    """

    number: int
    away_ns: int | None
    proven: bool
    num_blocks: int
    free_rows: int
    num_free_blocks: int = 0
    num_sequences: int = 0
    num_waiting: int = 0
    num_suspects: int = 0
    num_tokens: int = 0
    free_queue: int = 1 << 30
    free_queue_tokens: int | None = None

    @property
    def serves(self) -> bool:
        """Whether it computes what it gets."""
        return self.away_ns is None

    @property
    def load(self) -> int:
        """What it has to do, in tokens."""
        return self.num_tokens + SEQUENCE_WEIGHT * self.num_sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is placed together: the sequences of a request that are admitted together, or one that has run already.

    sequence_id: of the first. num_tokens: known ones, to be computed where nothing is cached. blocks_needed: without
    which it can never run. cached: tokens that are cached, by the worker's number. num_deaths: of workers, at which it
    was in flight. suspect: whether it must run alone.
    """

    sequence_id: int
    num_tokens: int
    blocks_needed: int
    num_sequences: int = 1
    cached: Mapping[int, int]
    num_deaths: int = 0
    suspect: bool = False

    def cost(self, worker: WorkerView) -> int:
        """Tokens until this one is computed there."""
        return worker.load + self.num_tokens - self.cached.get(worker.number, 0)

    def is_refused_by(self, worker: WorkerView) -> bool:
        """Whether the worker's queue is too full to take it as a new request."""
        limit, num_tokens = worker.free_queue_tokens, self.num_tokens * self.num_sequences
        return self.num_sequences > worker.free_queue or (
            limit is not None and worker.num_waiting > 0 and num_tokens > limit
        )


@dataclass(frozen=True, slots=True)
class Move:
    """A sequence that waits in one worker's core is to wait in another's."""

    sequence_id: int
    source: int
    target: int


class NoWorkerError(SchedulerError):
    """There is no worker at all, not even one that is away."""


def place(unit: Unit, workers: Sequence[WorkerView]) -> int:
    """The worker whose core takes a new request. Where none serves, it is the one that was lost last; where it fits
    nowhere, the largest, whose core says so. Raises NoWorkerError."""
    if not workers:
        raise NoWorkerError("no worker is known")
    fitting = [worker for worker in workers if worker.num_blocks >= unit.blocks_needed]
    if not fitting:
        return max(workers, key=lambda worker: (worker.serves, worker.num_blocks, -worker.number)).number
    serving = [worker for worker in fitting if worker.serves]
    if serving:
        return min(serving, key=lambda worker: (unit.is_refused_by(worker), *_preference(unit, worker))).number
    return min(
        fitting, key=lambda worker: (unit.is_refused_by(worker), worker.away_ns, unit.cost(worker), worker.number)
    ).number


def plan_moves(workers: Sequence[WorkerView], waiting: Mapping[int, Iterable[Unit]]) -> list[Move]:
    """What moves now. waiting: the units that may move, by the number of their worker, in order of service."""
    views = {worker.number: worker for worker in workers}
    moves: list[Move] = []

    def offer(unit: Unit, home: int) -> bool:
        target = _target(unit, views[home], list(views.values()))
        if target is not None:
            moves.append(Move(unit.sequence_id, home, target))
            views[home] = _without(views[home], unit)
            views[target] = _with(views[target], unit)
        return target is not None

    units = {number: tuple(waiting[number]) for number in sorted(waiting, key=lambda one: (views[one].serves, one))}
    for suspects in (True, False):  # suspects first: where they are tried decides where the others do not go
        for home, queue in units.items():
            for unit in queue:
                moved = unit.suspect is not suspects or offer(unit, home)
                if not moved and views[home].serves and not views[home].num_suspects:
                    break  # those behind it have no better claim
    return moves


def _target(unit: Unit, home: WorkerView, workers: Sequence[WorkerView]) -> int | None:
    """Where a unit that waits goes; None if it stays."""
    targets = [
        worker
        for worker in workers
        if worker.serves and worker.number != home.number and worker.num_blocks >= unit.blocks_needed
    ]
    if unit.suspect:
        return _target_of_suspect(unit, home, targets)
    untroubled = [worker for worker in targets if not worker.num_suspects]
    if not home.serves:
        candidates = untroubled or targets
    elif home.num_suspects:
        candidates = untroubled
    else:
        rest = _without(home, unit)
        candidates = [worker for worker in untroubled if _is_idle(unit, worker) and unit.cost(worker) < unit.cost(rest)]
        if unit.num_deaths:
            candidates = [worker for worker in candidates if worker.proven]
    return min(candidates, key=lambda worker: _preference(unit, worker)).number if candidates else None


def _target_of_suspect(unit: Unit, home: WorkerView, targets: Sequence[WorkerView]) -> int | None:
    troubled = [worker for worker in targets if worker.num_suspects]
    if home.serves:  # all are tried on one worker, so that the others are free of them
        return troubled[0].number if troubled and troubled[0].number < home.number else None
    if troubled:
        return troubled[0].number
    has_waited = home.away_ns is not None and home.away_ns >= SUSPECT_PATIENCE_NS
    if not targets or (len(targets) == 1 and not has_waited):
        return None
    return min(targets, key=lambda worker: (not worker.proven, worker.load, worker.number)).number


def _preference(unit: Unit, worker: WorkerView) -> tuple[bool, bool, int, int, int]:
    """Least is best, among workers that serve. Among equals the emptiest pool, so that different prefixes spread."""
    unsafe = not worker.proven and (unit.num_deaths > 0 or worker.num_sequences > 0)
    return worker.num_suspects > 0, unsafe, unit.cost(worker), -worker.num_free_blocks, worker.number


def _is_idle(unit: Unit, worker: WorkerView) -> bool:
    unsafe = not worker.proven and worker.num_sequences > 0
    return worker.num_waiting == 0 and worker.free_rows >= unit.num_sequences and not unsafe


def _with(worker: WorkerView, unit: Unit) -> WorkerView:
    return replace(
        worker,
        num_sequences=worker.num_sequences + unit.num_sequences,
        num_waiting=worker.num_waiting + unit.num_sequences,
        num_tokens=worker.num_tokens + unit.num_tokens,
        num_suspects=worker.num_suspects + unit.suspect,
    )


def _without(worker: WorkerView, unit: Unit) -> WorkerView:
    return replace(
        worker,
        num_sequences=worker.num_sequences - unit.num_sequences,
        num_waiting=worker.num_waiting - unit.num_sequences,
        num_tokens=worker.num_tokens - unit.num_tokens,
        num_suspects=worker.num_suspects - unit.suspect,
    )
