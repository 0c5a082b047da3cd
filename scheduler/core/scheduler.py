"""The scheduler: waiting and running queues, and one loop in which every sequence's computed tokens chase its tokens.

There is no prefill phase and no decode phase. A step gives each running sequence what it lacks, under the token budget;
that one rule is chunked prefill, decode and recompute.

Up to `max_plans_in_flight` plans are sent before their results are back. A worker executes plans in the order in which
they were sent, so a plan may reuse rows and blocks that it releases even if the plan before still writes them; and a
result is read against the rows of its own plan, whatever has become of those since.

Invariants, checked by the property tests after every call:
- every live sequence is in exactly one queue; only running ones have a row and blocks;
- free + cached + referenced blocks == all blocks, and a block's references are the tables that name it;
- no plan exceeds the token budget or the number of rows.
"""

from __future__ import annotations

import heapq
from collections import deque

from scheduler.core.block_manager import BlockManager
from scheduler.core.config import CoreConfig
from scheduler.core.counters import Counters
from scheduler.core.errors import (
    DuplicateSequenceError,
    InvalidSequenceError,
    NeverFitsError,
    QueueFullError,
)
from scheduler.core.live import LiveSequence, Queue, blocks_for
from scheduler.core.plan import IDLE, WAITING, Idle, StepPlan, Waiting
from scheduler.core.plan_builder import PlanBuilder, PlanInFlight
from scheduler.core.queues import OrderedQueue
from scheduler.core.result import End, EndReason, RowFlag, StepOutput, StepResult
from scheduler.core.sequence import SequenceSpec
from scheduler.core.settle import Settlement, check_result
from scheduler.core.snapshot import SequenceSnapshot, Snapshot


class Scheduler:
    """Decides what one worker group computes in each step. Not thread-safe; one task calls it."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.counters = Counters()
        self.blocks = BlockManager(config)
        self.epoch = 0
        self._live: dict[int, LiveSequence] = {}
        self._waiting = OrderedQueue()
        self._running = OrderedQueue()
        self._in_flight: deque[PlanInFlight] = deque()
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._released_rows: list[int] = []
        self._deadlines: list[tuple[int, int]] = []
        self._num_arrivals = 0
        self._next_step_id = 1

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold a row."""
        return len(self._running)

    @property
    def num_plans_in_flight(self) -> int:
        """Plans sent whose result is not back."""
        return len(self._in_flight)

    @property
    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of a sequence, which may have ended already."""
        return self._deadlines[0][0] if self._deadlines else None

    def snapshot(self) -> Snapshot:
        """All queues, rows and blocks as they are now. Takes time in proportion to sequences and blocks."""
        pool = self.blocks.pool
        return Snapshot(
            epoch=self.epoch,
            plans_in_flight=tuple(plan.step_id for plan in self._in_flight),
            waiting=tuple(SequenceSnapshot.of(sequence) for sequence in self._waiting),
            running=tuple(SequenceSnapshot.of(sequence) for sequence in self._running),
            num_live=len(self._live),
            num_deadlines=len(self._deadlines),
            free_rows=tuple(sorted(self._free_rows)),
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_indexed_blocks=len(self.blocks.prefix_cache),
            block_references=tuple(pool.references(block) for block in range(pool.num_blocks)),
        )

    def add(self, spec: SequenceSpec) -> None:
        """Queues a sequence.

        Raises InvalidSequenceError, DuplicateSequenceError, NeverFitsError or QueueFullError, and then nothing has
        changed.
        """
        self._check(spec)
        sequence = LiveSequence(spec, self._num_arrivals)
        self._num_arrivals += 1
        self._live[spec.sequence_id] = sequence
        self._waiting.insert(sequence)
        if spec.deadline_ns is not None:
            heapq.heappush(self._deadlines, (spec.deadline_ns, spec.sequence_id))
            if len(self._deadlines) > 2 * len(self._live) + 64:
                self._forget_stale_deadlines()

    def finish(self, sequence_id: int, reason: EndReason) -> End | None:
        """Ends a sequence from outside; its blocks serve others from the next plan on. None if it is not live."""
        sequence = self._live.get(sequence_id)
        return None if sequence is None else self._end(sequence, reason)

    def finish_all(self, reason: EndReason) -> tuple[End, ...]:
        """Ends every live sequence, running ones first, in order of service."""
        return tuple(self._end(sequence, reason) for sequence in [*self._running, *self._waiting])

    def expire(self, now_ns: int) -> tuple[End, ...]:
        """Ends all sequences whose deadline has passed, in whatever queue."""
        ends = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, sequence_id = heapq.heappop(self._deadlines)
            end = self.finish(sequence_id, EndReason.DEADLINE)
            if end is not None:
                ends.append(end)
        return tuple(ends)

    def schedule(self) -> StepPlan | Waiting | Idle:
        """Plans the next step. Waiting: a result must come first. Idle: nothing to run and none to wait for."""
        if len(self._in_flight) >= self.config.max_plans_in_flight:
            return WAITING
        plan = PlanBuilder(self._next_step_id, self.config.max_num_batched_tokens)
        preempted = self._schedule_running(plan)
        if not preempted:
            self._admit_waiting(plan)
        if not plan.rows:
            return WAITING if self._in_flight else IDLE
        self._next_step_id += 1
        self.counters.steps += 1
        self.counters.computed_tokens += self.config.max_num_batched_tokens - plan.budget
        self._in_flight.append(PlanInFlight(plan.step_id, tuple(plan.rows)))
        released, self._released_rows = self._released_rows, []
        return plan.build(released)

    def update(self, result: StepResult) -> StepOutput:
        """Settles the oldest plan in flight. A result of an older epoch is dropped.

        Raises ResultMismatchError if the result does not answer that plan, and then nothing has changed.
        """
        if result.epoch != self.epoch:
            return StepOutput()
        check_result(result, self._in_flight[0] if self._in_flight else None)
        rows = self._in_flight.popleft().rows
        # Before any token is kept: a sharer's token of this very plan, whatever its row, is not to be trusted either.
        for planned, flag in zip(rows, result.flags, strict=False):  # no flags: all rows are well
            if flag is not RowFlag.OK and planned.is_awaited:
                self._requeue_sharers(planned.sequence)
        settlement = Settlement(result, self.counters)
        for planned in rows:
            reason = settlement.settle(planned)
            sequence = planned.sequence
            if reason is not None:
                settlement.ends.append(self._end(sequence, reason))
            elif sequence.queue is Queue.RUNNING:
                self.blocks.index(sequence)
        return settlement.output()

    def requeue_all(self, num_blocks: int) -> tuple[End, ...]:
        """The worker and all it held are gone: every sequence waits again, from its settled tokens, at its old place.

        num_blocks: of the worker that comes next. Sequences that can never fit into it end with CAPACITY.
        """
        self.epoch += 1
        for plan in self._in_flight:
            for planned in plan.rows:
                self.counters.wasted_tokens += planned.num_tokens
        self._in_flight.clear()
        for sequence in self._running.clear():
            self._waiting.insert(sequence)
            sequence.queue = Queue.WAITING
            sequence.row = -1
            self.blocks.forget(sequence)
        for sequence in self._waiting:
            sequence.num_in_flight_tokens = 0
            sequence.num_in_flight_plans = 0
            sequence.num_void_plans = 0
            sequence.num_computed = 0
        self._free_rows = list(range(self.config.max_num_seqs - 1, -1, -1))
        self._released_rows = []
        self.blocks.reset(num_blocks)
        too_large = [sequence for sequence in self._waiting if self._blocks_needed(sequence.spec) > num_blocks]
        return tuple(self._end(sequence, EndReason.CAPACITY) for sequence in too_large)

    # -- the three steps of schedule ---------------------------------------------------------------------------------

    def _schedule_running(self, plan: PlanBuilder) -> bool:
        """Gives running sequences the blocks and the budget for their next tokens, in order of service.

        Sequences that lack one token only are never held up by long prompts: their share of the budget is set aside
        first. When the pool is dry the tail of the queue is preempted. Returns whether any was.
        """
        running = self._running
        decodes = sum(sequence.num_uncomputed == 1 for sequence in running)
        chunk_budget = plan.budget - decodes
        preempted = False
        position = 0
        while position < len(running):
            sequence = running[position]
            count = sequence.num_uncomputed
            if count > 1:
                count = min(count, chunk_budget)
                chunk_budget -= count
            if count > 0:
                needed = sequence.num_computed + count
                first_index = len(sequence.blocks)
                while (grown := self.blocks.append(sequence, needed)) is None and sequence.queue is Queue.RUNNING:
                    self._preempt(running[-1])
                    preempted = True
                if grown is None:
                    break
                plan.append_blocks(sequence.row, first_index, grown.blocks)
                plan.compute(sequence, count)
                self.blocks.index(sequence)
            position += 1
        return preempted

    def _admit_waiting(self, plan: PlanBuilder) -> None:
        """Admits from the head of the queue while rows, budget and blocks for all known tokens are there.

        Nobody passes the head: a sequence that waits for blocks, or for the result of a plan that it was preempted
        from, holds the others up.
        """
        while self._waiting and self._free_rows and plan.budget > 0:
            sequence = self._waiting[0]
            if sequence.num_in_flight_plans:
                return
            allocation = self.blocks.admit(sequence, self.config.watermark if self._running else 0)
            if allocation is None:
                return
            self._waiting.remove(sequence)
            self._running.insert(sequence)
            sequence.queue = Queue.RUNNING
            sequence.row = self._free_rows.pop()
            sequence.num_computed = allocation.num_cached_tokens
            if self.config.enable_prefix_caching:
                self.counters.prefix_cache_queries += len(sequence.token_ids)
                self.counters.prefix_cache_hits += allocation.num_cached_tokens
            plan.admit(sequence)
            plan.compute(sequence, min(sequence.num_uncomputed, plan.budget))
            self.blocks.index(sequence)

    # -- changes of queue --------------------------------------------------------------------------------------------

    def _preempt(self, sequence: LiveSequence) -> None:
        """Takes row and blocks from a running sequence; it waits again, at its place in the order of service.

        A token of it that is in flight is kept when its result comes, and only then can it be admitted again.
        """
        self._leave_row(sequence)
        self._waiting.insert(sequence)
        sequence.queue = Queue.WAITING
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self.counters.preemptions += 1

    def _end(self, sequence: LiveSequence, reason: EndReason) -> End:
        if sequence.queue is Queue.RUNNING:
            self._leave_row(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.queue = Queue.FINISHED
        del self._live[sequence.spec.sequence_id]
        self.counters.finished += 1
        return End(
            sequence_id=sequence.spec.sequence_id,
            reason=reason,
            num_output_tokens=sequence.num_output,
            stop_token_id=sequence.token_ids[-1] if reason is EndReason.STOP else None,
        )

    def _leave_row(self, sequence: LiveSequence) -> None:
        self._running.remove(sequence)
        self._released_rows.append(sequence.row)
        self._free_rows.append(sequence.row)
        sequence.row = -1
        self.blocks.release(sequence)

    def _requeue_sharers(self, failed: LiveSequence) -> None:
        """A row's KV is not to be trusted: nobody finds its blocks again, and those who may share them compute anew.

        What plans in flight compute for the sharers comes from that KV too, and is dropped; also for those that were
        preempted since.
        """
        self.blocks.distrust(failed)
        for sequence in self._live.values():
            if sequence is not failed and sequence.begins_like(failed):
                if sequence.queue is Queue.RUNNING:
                    self._preempt(sequence)
                sequence.num_void_plans = sequence.num_in_flight_plans

    def _forget_stale_deadlines(self) -> None:
        """Deadlines of ended sequences are left in the heap; this bounds them by the number of live ones."""
        self._deadlines = [entry for entry in self._deadlines if entry[1] in self._live]
        heapq.heapify(self._deadlines)

    # -- limits ------------------------------------------------------------------------------------------------------

    def _check(self, spec: SequenceSpec) -> None:
        if not spec.prompt:
            raise InvalidSequenceError("the prompt is empty", field="prompt", value=0, limit="at least 1 token")
        if spec.max_tokens < 1:
            raise InvalidSequenceError(
                f"max_tokens must be at least 1, is {spec.max_tokens}",
                field="max_tokens",
                value=spec.max_tokens,
                limit=1,
            )
        if spec.sequence_id in self._live:
            raise DuplicateSequenceError(
                f"sequence {spec.sequence_id} is live", field="sequence_id", value=spec.sequence_id
            )
        needed, pool = self._blocks_needed(spec), self.blocks.pool.num_blocks
        if needed > pool:
            raise NeverFitsError(
                f"needs {needed} blocks, pool {pool}: {len(spec.prompt)} prompt tokens and {spec.max_tokens} more, "
                f"{self.config.block_size} per block",
                field="max_tokens",
                value=spec.max_tokens,
                limit=pool,
            )
        if len(self._waiting) >= self.config.max_num_waiting:
            raise QueueFullError(
                f"{len(self._waiting)} sequences wait, limit {self.config.max_num_waiting}",
                field="request",
                value=len(self._waiting),
                limit=self.config.max_num_waiting,
            )

    def _blocks_needed(self, spec: SequenceSpec) -> int:
        """Blocks of the whole sequence; the KV of its last token is never computed."""
        return blocks_for(len(spec.prompt) + spec.max_tokens - 1, self.config.block_size)
