"""The workers of a scheduler, and which of their cores holds which sequence.

Carries out what `scheduler.core.placement` decides: new requests go into a core, what waits moves to another. Delivered
tokens move along as they are, so they are never changed, doubled or lost by a move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import structlog

from scheduler.core.counters import Counters
from scheduler.core.handover import Handover, blocks_needed
from scheduler.core.placement import Move, Unit, place, plan_moves
from scheduler.core.result import End, EndReason
from scheduler.core.sequence import SequenceSpec
from scheduler.lane import WorkerLane, cached_tokens

log = structlog.get_logger()


class Fleet:
    """Lanes by number, in the order in which they joined. Called by the engine's task alone."""

    def __init__(self) -> None:
        self._lanes: dict[int, WorkerLane] = {}
        self._lane_of: dict[int, WorkerLane] = {}
        self._past_counters: list[Counters] = []
        self._num_arrivals = 0
        self._num_lanes = 0

    def __iter__(self) -> Iterator[WorkerLane]:
        return iter(self._lanes.values())

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def counters(self) -> list[Counters]:
        """Of all cores, those of workers that have left included."""
        return [lane.core.counters for lane in self] + self._past_counters

    def find(self, address: str) -> WorkerLane | None:
        """The lane of a worker."""
        return next((lane for lane in self if lane.address == address), None)

    def join(self, make: Callable[[int], WorkerLane]) -> WorkerLane:
        """Adds a lane, which is made with its number."""
        self._num_lanes += 1
        lane = self._lanes[self._num_lanes] = make(self._num_lanes)
        return lane

    def dismiss(self) -> list[WorkerLane]:
        """Drops the lanes that leave and hold nothing. The last one stays: requests wait in its core for the next."""
        gone = [lane for lane in self if lane.leaving and not lane.num_live]
        if len(gone) == len(self._lanes):
            gone = gone[:-1]
        for lane in gone:
            del self._lanes[lane.number]
            self._past_counters.append(lane.core.counters)
        return gone

    def add(self, specs: tuple[SequenceSpec, ...], now_ns: int) -> None:
        """Puts a new request where it is computed soonest. Raises SchedulerError, and then nothing has changed."""
        numbered = tuple(replace(spec, arrival=self._num_arrivals + index) for index, spec in enumerate(specs))
        lane = self._lane_of.get(numbered[0].sequence_id) if numbered else None
        lane = lane or self._choose(numbered, now_ns)  # where an id is live already it is refused
        lane.core.add_group(numbered)
        self._num_arrivals += len(numbered)
        for spec in numbered:
            self._lane_of[spec.sequence_id] = lane

    def finish(self, sequence_id: int, reason: EndReason, num_output_tokens: int | None = None) -> End | None:
        """Ends a sequence wherever it is, as `Scheduler.finish` does; None if it is not live."""
        lane = self._lane_of.pop(sequence_id, None)
        return None if lane is None else lane.core.finish(sequence_id, reason, num_output_tokens)

    def forget(self, ends: tuple[End, ...] | list[End]) -> None:
        """These have ended."""
        for end in ends:
            self._lane_of.pop(end.sequence_id, None)

    def move(self, now_ns: int) -> list[WorkerLane]:
        """Moves what waits where it should not. Returns the lanes that got something."""
        if len(self._lanes) < 2:
            return []
        lanes = list(self)
        homes = _homes(lanes)
        if not homes:
            return []
        waiting = {lane.number: list(lane.units(lanes)) for lane in homes}
        moves = plan_moves([lane.view(now_ns) for lane in lanes], waiting)
        for one in moves:
            self._carry(one)
        if moves:
            log.info(
                "sequences moved", number=len(moves), workers=sorted({self._lanes[m.target].address for m in moves})
            )
        return [self._lanes[number] for number in sorted({one.target for one in moves})]

    def _carry(self, move: Move) -> None:
        target = self._lanes[move.target]
        handovers = self._lanes[move.source].core.withdraw(move.sequence_id)
        target.core.adopt(handovers)
        for handover in handovers:
            self._lane_of[handover.spec.sequence_id] = target

    def _choose(self, specs: tuple[SequenceSpec, ...], now_ns: int) -> WorkerLane:
        if len(self._lanes) == 1 or not specs:
            return next(iter(self))
        lanes, first = list(self), specs[0]
        handovers = tuple(Handover(spec=spec) for spec in specs)
        unit = Unit(
            sequence_id=first.sequence_id,
            num_tokens=len(first.prompt),
            blocks_needed=blocks_needed(handovers, lanes[0].core.config.block_size),
            num_sequences=len(specs),
            cached=cached_tokens(first.prompt, first.cache_salt, lanes),
        )
        return self._lanes[place(unit, [lane.view(now_ns) for lane in lanes])]


def _homes(lanes: list[WorkerLane]) -> list[WorkerLane]:
    """The lanes with sequences that could move at all: to look at one costs a search in every prefix cache, and a
    fleet that has its hands full asks in every turn."""
    waiting = [lane for lane in lanes if lane.core.num_waiting]
    serving = [lane for lane in lanes if lane.serves]
    if not waiting or not serving:
        return []
    if any(not lane.core.num_waiting and lane.core.num_running < lane.core.config.max_num_seqs for lane in serving):
        return waiting
    return [lane for lane in waiting if not lane.serves or lane.core.num_suspects]
