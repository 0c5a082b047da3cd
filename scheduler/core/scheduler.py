"""The scheduler: waiting, running and swapped queues, and one rule: computed tokens chase known tokens.

There is no prefill phase and no decode phase. A step gives each running sequence what it lacks, under the token budget;
that one rule is chunked prefill, prefix hits, decode and recompute. Sequences that lack exactly one token in every plan
are kept in the `DecodeBatch`, which a step does not walk.

Up to `max_plans_in_flight` plans are sent before their results are back. A worker executes plans in the order in which
they were sent, so a plan may reuse rows and blocks that it releases even if the plan before still writes them; and a
result is read against the rows of its own plan, whatever has become of those since.

Invariants, checked by the property tests after every call:
- every live sequence is in exactly one queue; only running ones have a row and device blocks, only swapped ones have
  host blocks; a running one decodes, catches up, waits for its fork, or has its last token in flight;
- free + cached + referenced blocks == all blocks, and a block's references are the tables and pins that name it;
- no plan exceeds the token budget or the number of rows.
"""

from __future__ import annotations

from collections import deque

from scheduler.core.block_manager import BlockManager
from scheduler.core.config import CoreConfig
from scheduler.core.counters import Counters
from scheduler.core.deadlines import Deadlines
from scheduler.core.decode_batch import DecodeBatch
from scheduler.core.drop_prefix import PrefixSelection, drop_prefix
from scheduler.core.forks import Group
from scheduler.core.history import DecisionKind
from scheduler.core.host_pool import HostPool
from scheduler.core.limits import blocks_needed, check_group, max_tokens_within
from scheduler.core.live import LiveSequence, Queue, blocks_for
from scheduler.core.plan import IDLE, WAITING, Idle, StepPlan, Waiting
from scheduler.core.plan_builder import PlanBuilder, PlanInFlight, PlannedRow
from scheduler.core.preemption_policy import VICTIM_WINDOW, Candidate, PreemptionPolicy, Rates
from scheduler.core.queues import OrderedQueue
from scheduler.core.result import End, EndReason, RowFlag, StepOutput, StepResult
from scheduler.core.sequence import SequenceSpec
from scheduler.core.settle import Settlement, check_result
from scheduler.core.snapshot import SequenceSnapshot, Snapshot

# How far behind a sequence that waits for blocks the queue is searched for one that fits.
OVERTAKE_WINDOW = 16


class Scheduler:
    """Decides what one worker group computes in each step. Not thread-safe; one task calls it."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.counters = Counters()
        self.blocks = BlockManager(config)
        self.host = HostPool(config.num_host_blocks)
        self.epoch = 0
        self._policy = PreemptionPolicy(
            config.preemption_mode, block_size=config.block_size, bytes_per_block=config.bytes_per_block
        )
        self._live: dict[int, LiveSequence] = {}
        self._waiting = OrderedQueue()
        self._running = OrderedQueue()
        self._swapped = OrderedQueue()
        # Running sequences are in the decode batch, or here, or pending in a group, or have all their tokens planned.
        self._decoding = DecodeBatch()
        self._catching_up = OrderedQueue()
        self._forking: list[Group] = []
        # Until the plan at hand is sent: who joins the decode batch then, and whose pins end then.
        self._joining: list[LiveSequence] = []
        self._copied: list[Group] = []
        self._in_flight: deque[PlanInFlight] = deque()
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        # For the next plan: rows that were freed, and (device, host) blocks to save before anything overwrites them.
        self._released_rows: list[int] = []
        self._swap_out: list[tuple[int, int]] = []
        self._deadlines = Deadlines()
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
    def num_swapped(self) -> int:
        """Sequences whose KV lies in the host pool."""
        return len(self._swapped)

    @property
    def num_plans_in_flight(self) -> int:
        """Plans sent whose result is not back."""
        return len(self._in_flight)

    @property
    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of a sequence, which may have ended already."""
        return self._deadlines.earliest_ns

    # -- inputs ------------------------------------------------------------------------------------------------------

    def add(self, spec: SequenceSpec) -> None:
        """Queues a sequence. Raises as `add_group`."""
        self.add_group((spec,))

    def add_group(self, specs: tuple[SequenceSpec, ...]) -> None:
        """Queues the sequences of one request; their prompts are equal, and they are admitted all or none.

        Raises InvalidSequenceError, DuplicateSequenceError, NeverFitsError or QueueFullError, and then nothing has
        changed.
        """
        check_group(specs, self.config, self.blocks.pool.num_blocks, len(self._waiting), self._live)
        members = []
        for spec in specs:
            priority = spec.priority if self.config.policy == "priority" else 0
            sequence = LiveSequence(spec, self._num_arrivals, priority)
            sequence.max_tokens = max_tokens_within(spec, self.blocks.pool.num_blocks, self.config.block_size)
            self._num_arrivals += 1
            self._live[spec.sequence_id] = sequence
            self._waiting.insert(sequence)
            self._note(sequence, DecisionKind.QUEUED, waiting=len(self._waiting))
            members.append(sequence)
            if spec.deadline_ns is not None:
                self._deadlines.add(spec.deadline_ns, spec.sequence_id, self._live, len(self._live))
        if len(members) > 1:
            group = Group(members)
            for sequence in list(members):
                sequence.group = group

    def finish(self, sequence_id: int, reason: EndReason) -> End | None:
        """Ends a sequence from outside; its blocks serve others from the next plan on. None if it is not live."""
        sequence = self._live.get(sequence_id)
        return None if sequence is None else self._end(sequence, reason)

    def finish_all(self, reason: EndReason) -> tuple[End, ...]:
        """Ends every live sequence: running ones, then swapped, then waiting ones, each in order of service."""
        everyone = [*self._running, *self._swapped, *self._waiting]
        return tuple(self._end(sequence, reason) for sequence in everyone)

    def expire(self, now_ns: int) -> tuple[End, ...]:
        """Ends all sequences whose deadline has passed, in whatever queue."""
        ends = [self.finish(sequence_id, EndReason.DEADLINE) for sequence_id in self._deadlines.pop_expired(now_ns)]
        return tuple(end for end in ends if end is not None)

    def drop_prefix(self, selection: PrefixSelection) -> tuple[int, int]:
        """Makes cached prefixes unfindable; returns how many blocks were dropped, and how many stay, being in use."""
        return drop_prefix(self.blocks, selection)

    def set_rates(self, *, prefill_tokens_per_s: int, copy_bytes_per_s: int) -> None:
        """Tells the preemption policy what was measured. Both at least 1."""
        self._policy.rates = Rates(prefill_tokens_per_s=prefill_tokens_per_s, copy_bytes_per_s=copy_bytes_per_s)

    def schedule(self) -> StepPlan | Waiting | Idle:
        """Plans the next step. Waiting: a result must come first. Idle: nothing to run and none to wait for."""
        if len(self._in_flight) >= self.config.max_plans_in_flight:
            return WAITING
        plan = PlanBuilder(self._next_step_id, self.config.max_num_batched_tokens)
        preempted = self._extend_tables(plan)
        if not preempted:
            self._make_room_for_urgent(plan)
        self._compute_running(plan)
        if not preempted:
            self._swap_in(plan)
            self._admit_waiting(plan)
        if not plan.rows and not len(self._decoding):
            return WAITING if self._in_flight else IDLE
        return self._send(plan)

    def update(self, result: StepResult) -> StepOutput:
        """Settles the oldest plan in flight. A result of another epoch is dropped.

        Raises ResultMismatchError if the result does not answer that plan, and then nothing has changed.
        """
        if result.epoch != self.epoch:
            return StepOutput()
        plan = self._in_flight[0] if self._in_flight else None
        check_result(result, plan)
        assert plan is not None, "checked"
        settlement = Settlement(result, plan, self.counters)
        if any(result.flags):
            self._settle_flagged(plan, result, settlement)
        else:
            self._pop_settled()
            settlement.settle_decodes()
            settlement.settle_rows()
        for planned in plan.rows:
            sequence = planned.sequence
            if sequence.queue is Queue.RUNNING and sequence.decoding is None:
                self.blocks.index(sequence, sequence.num_computed)
        ends = tuple(self._end(sequence, reason) for sequence, reason in settlement.ending)
        return settlement.output(ends)

    def requeue_all(self, num_blocks: int, num_host_blocks: int = 0) -> tuple[End, ...]:
        """The worker and all it held are gone: every sequence waits again, from its settled tokens, at its old place.

        num_blocks, num_host_blocks: of the worker that comes next. What can never fit into it ends with CAPACITY.
        """
        self.epoch += 1
        self.counters.wasted_tokens += sum(plan.num_tokens for plan in self._in_flight)
        for sequence in [*self._running, *self._swapped]:
            self._note(sequence, DecisionKind.REQUEUED, tokens=len(sequence.token_ids))
            if sequence.decoding is not None:
                self._decoding.leave(sequence)
        for sequence in [*self._running.clear(), *self._swapped.clear()]:
            self._waiting.insert(sequence)
            sequence.queue = Queue.WAITING
            sequence.row = -1
            sequence.host_blocks = []
            self.blocks.forget(sequence)
        for sequence in self._waiting:
            sequence.num_in_flight_tokens = 0
            sequence.num_in_flight_plans = 0
            sequence.num_void_plans = 0
            sequence.num_computed = 0
        self._forget_worker_state(num_blocks, num_host_blocks)
        return self._end_too_large(num_blocks)

    # -- the steps of schedule ---------------------------------------------------------------------------------------

    def _extend_tables(self, plan: PlanBuilder) -> bool:
        """Step 1: running sequences get the blocks for their next tokens, in order of service.

        When the pool is dry somebody later in that order is preempted, or the sequence itself if it is the last.
        Returns whether anybody was.
        """
        preempted = False
        needy = self._decoding.take_full()
        if self._catching_up:
            needy = sorted([*needy, *self._catching_up], key=lambda sequence: sequence.key)
        for sequence in needy:
            if sequence.queue is not Queue.RUNNING:
                continue  # preempted for one before it
            if sequence.decoding is not None:
                wanted = self._decoding.computed(sequence) + 1
                self.blocks.index(sequence, wanted - 1)
            else:
                wanted = len(sequence.token_ids) + sequence.num_in_flight_tokens
            first_index = len(sequence.blocks)
            while (grown := self.blocks.append(sequence, wanted)) is None and sequence.queue is Queue.RUNNING:
                self._preempt_for(sequence)
                preempted = True
            if grown is not None:
                plan.append_blocks(sequence.row, first_index, grown.blocks)
                if sequence.decoding is not None:
                    self._decoding.set_date(sequence, self.config.block_size)
        return preempted

    def _make_room_for_urgent(self, plan: PlanBuilder) -> None:
        """Step 1, continued: the head of the waiting queue takes the rows and blocks of running sequences of lower
        priority, the last of them first, if that lets it into this very plan."""
        if not self._waiting or not self._running or self._waiting[0].key[0] >= self._running[-1].key[0]:
            return
        head = self._waiting[0]
        if head.num_in_flight_plans or (self._swapped and head.key[0] >= self._swapped[0].key[0]):
            return
        victims = [sequence for sequence in self._running if sequence.key[0] > head.key[0]]
        num_spared = len(self._running) - len(victims)
        chunks = sum(sequence.num_uncomputed for sequence in self._catching_up if sequence.key[0] <= head.key[0])
        if num_spared + chunks >= self.config.max_num_batched_tokens:
            return
        num_more = self._num_siblings(head)
        watermark = self.config.watermark if num_spared else 0
        lacks_rows = len(self._free_rows) + len(victims) <= num_more
        if lacks_rows or self.blocks.shortage(head, watermark, num_more, victims) > 0:
            return
        while victims and (
            len(self._free_rows) <= num_more or self.blocks.shortage(head, self._watermark, num_more) > 0
        ):
            victim = victims.pop()
            if victim.queue is Queue.RUNNING:  # not parted from a group by an earlier one
                plan.drop_blocks(victim.row)
                self._preempt(victim, swap=self._policy.choose([self._candidate(victim)], self.host.num_free)[1])

    def _compute_running(self, plan: PlanBuilder) -> None:
        """Step 1, continued: every decode gets its token and every fork its first, then prompts get chunks of what is
        left of the budget. A long prompt never holds up a sequence that lacks one token."""
        plan.budget -= len(self._decoding)
        for group in [group for group in self._forking if group.ready]:
            self._fork(plan, group)
        if self._catching_up:
            for sequence in sorted(self._catching_up, key=lambda sequence: sequence.num_uncomputed > 1):
                count = min(sequence.num_uncomputed, plan.budget)
                if count > 0:
                    self._compute(plan, sequence, count)

    def _swap_in(self, plan: PlanBuilder) -> None:
        """Step 2: swapped sequences come back, in order of service, unless somebody more urgent waits."""
        while self._swapped and self._free_rows and plan.budget > 0:
            sequence = self._swapped[0]
            if self._waiting and self._waiting[0].key[0] < sequence.key[0]:
                return
            if sequence.num_in_flight_plans:
                return
            allocation = self.blocks.admit(sequence, self._watermark)
            if allocation is None:
                return
            found = allocation.num_cached_tokens // self.config.block_size
            moves = list(zip(sequence.host_blocks, sequence.blocks, strict=False))[found:]
            plan.swap_in += moves
            self.counters.swapped_in_blocks += len(moves)
            self._note(sequence, DecisionKind.SWAPPED_IN, blocks=len(moves), found=found)
            self.host.release(sequence.host_blocks)
            sequence.host_blocks = []
            self._swapped.remove(sequence)
            sequence.num_computed = max(sequence.num_computed, allocation.num_cached_tokens)
            self._enter(plan, sequence)

    def _admit_waiting(self, plan: PlanBuilder) -> None:
        """Step 3: admits in order of service while rows, budget and blocks for all known tokens are there.

        One that waits for blocks may be passed by later ones that fit, `max_overtakes` times; then it holds the others
        up. Nobody passes one that waits for rows, or for the result of a plan that it was preempted from.
        """
        passed: list[LiveSequence] = []
        position = 0
        while position < len(self._waiting) and plan.budget > 0:
            sequence = self._waiting[position]
            if self._swapped and sequence.key[0] >= self._swapped[0].key[0]:
                return
            if sequence.group is not None and sequence in sequence.group.waiting[1:]:
                position += 1
                continue
            if sequence.num_in_flight_plans or len(self._free_rows) <= self._num_siblings(sequence):
                return
            if self._admit(plan, sequence):
                for other in passed:
                    other.num_overtaken += 1
                    self._note(other, DecisionKind.OVERTAKEN, times=other.num_overtaken)
            else:
                passed.append(sequence)
                position += 1
            if any(other.num_overtaken >= self.config.max_overtakes for other in passed) or position > OVERTAKE_WINDOW:
                return

    def _send(self, plan: PlanBuilder) -> StepPlan:
        """Closes the plan: from here on it is on its way."""
        plan.decodes = self._decoding.columns()
        released, self._released_rows = self._released_rows, []
        swap_out, self._swap_out = self._swap_out, []
        self.counters.swapped_out_blocks += len(swap_out)
        built = plan.build(released, swap_out)
        in_flight = PlanInFlight(plan.step_id, self._decoding.clock, plan.decodes, tuple(plan.rows), built.max_samples)
        self._in_flight.append(in_flight)
        self._next_step_id += 1
        self.counters.steps += 1
        self.counters.computed_tokens += in_flight.num_tokens
        self._decoding.clock += 1
        for sequence in self._decoding.take_last():
            self._stop_decoding(sequence)
        for sequence in self._joining:
            if sequence.num_planned_output < sequence.max_tokens:
                self._decoding.join(sequence, self.config.block_size)
        self._joining.clear()
        for group in self._copied:
            self._unpin(group)
        self._copied.clear()
        return built

    # -- computing ---------------------------------------------------------------------------------------------------

    def _compute(self, plan: PlanBuilder, sequence: LiveSequence, count: int) -> None:
        """Plans tokens of a sequence that catches up; once the last known one is planned it decodes, from the next plan
        on."""
        if plan.compute(sequence, count):
            self._catching_up.remove(sequence)
            self._joining.append(sequence)
            if sequence.group is not None and sequence is sequence.group.leader:
                sequence.group.ready = True
        self.blocks.index(sequence, sequence.num_computed)

    def _enter(self, plan: PlanBuilder, sequence: LiveSequence) -> None:
        """Gives a row to a sequence that has its blocks, and plans its first tokens."""
        sequence.queue = Queue.RUNNING
        sequence.row = self._free_rows.pop()
        self._running.insert(sequence)
        self._catching_up.insert(sequence)
        plan.admit(sequence)
        self._compute(plan, sequence, min(sequence.num_uncomputed, plan.budget))

    def _admit(self, plan: PlanBuilder, sequence: LiveSequence) -> bool:
        """Admits a waiting sequence, its siblings with it; False if there are not enough blocks."""
        num_siblings = self._num_siblings(sequence)
        allocation = self.blocks.admit(sequence, self._watermark, num_siblings)
        if allocation is None:
            return False
        if self.config.enable_prefix_caching:
            self.counters.prefix_cache_queries += len(sequence.token_ids)
            self.counters.prefix_cache_hits += allocation.num_cached_tokens
        self._note(sequence, DecisionKind.ADMITTED, blocks=len(sequence.blocks), tokens=len(sequence.token_ids))
        if allocation.num_cached_tokens:
            self._note(sequence, DecisionKind.PREFIX_HIT, tokens=allocation.num_cached_tokens)
        self._waiting.remove(sequence)
        sequence.num_computed = allocation.num_cached_tokens
        if num_siblings and sequence.group is not None:
            self._reserve_forks(sequence.group, allocation.blocks)
        self._enter(plan, sequence)
        return True

    # -- forks -------------------------------------------------------------------------------------------------------

    def _num_siblings(self, sequence: LiveSequence) -> int:
        """Sequences that must be admitted together with this one."""
        return len(sequence.group.waiting) - 1 if sequence.group is not None and sequence.group.waiting else 0

    def _reserve_forks(self, group: Group, own_blocks: tuple[int, ...]) -> None:
        """Gives the leader's siblings their rows and blocks, before the leader takes its row."""
        leader = group.leader
        group.pending, group.waiting = group.waiting[1:], []
        group.ready = False
        prefix = len(leader.spec.prompt) - 1
        if prefix % self.config.block_size:
            group.pinned = leader.blocks[prefix // self.config.block_size]
            self.blocks.pin(group.pinned)
        for child, block in zip(group.pending, own_blocks, strict=True):
            self._waiting.remove(child)
            self.blocks.fork(leader, child, block)
            child.block_keys = list(leader.block_keys)
            child.queue = Queue.RUNNING
            child.row = self._free_rows.pop()
            self._running.insert(child)
        self._forking.append(group)

    def _fork(self, plan: PlanBuilder, group: Group) -> None:
        """The prompt's KV is planned: each sibling copies its partial block and computes the last prompt token anew."""
        self._forking.remove(group)
        pending, group.pending = group.pending, []
        for child in pending:
            if group.pinned is not None:
                plan.copy_on_write.append((group.pinned, child.blocks[-1]))
            child.num_computed = len(child.spec.prompt) - 1
            child.num_indexed = len(child.blocks) - 1
            child.block_keys = group.leader.block_keys[: child.num_indexed]
            self.counters.forks += 1
            self._note(child, DecisionKind.FORKED, shared=child.num_indexed)
            plan.admit(child)
            self._catching_up.insert(child)
            self._compute(plan, child, 1)
        self._copied.append(group)  # the copy comes after swap-ins, so none of this plan may write to its source

    def _part(self, group: Group) -> None:
        """The leader lost its blocks before its prompt was planned: its siblings wait as ordinary sequences."""
        self._forking.remove(group)
        pending, group.pending = group.pending, []
        for child in pending:
            self._leave_row(child)
            self._requeue(child)
        self._unpin(group)

    def _unpin(self, group: Group) -> None:
        if group.pinned is not None:
            self.blocks.unpin(group.pinned)
            group.pinned = None

    # -- changes of queue --------------------------------------------------------------------------------------------

    def _preempt_for(self, sequence: LiveSequence) -> None:
        """Preempts one of the last in order of service, none that comes before `sequence`."""
        candidates: list[Candidate] = []
        for other in reversed(self._running):
            if other.key < sequence.key or other.key[0] < self._running[-1].key[0] or len(candidates) == VICTIM_WINDOW:
                break
            candidates.append(self._candidate(other))
        candidates.reverse()
        victim, swap = self._policy.choose(candidates, self.host.num_free)
        self._preempt(victim.sequence, swap=swap)

    def _candidate(self, sequence: LiveSequence) -> Candidate:
        return Candidate(sequence, sequence.progress[0], self._num_freed(sequence))

    def _num_freed(self, sequence: LiveSequence) -> int:
        """Blocks that become available if this one loses its own."""
        return sum(self.blocks.pool.references(block) == 1 for block in sequence.blocks)

    def _preempt(self, sequence: LiveSequence, *, swap: bool, trusted: bool = True) -> None:
        """Takes row and blocks from a running sequence; it waits again, at its place in the order of service.

        A token of it that is in flight is kept when its result comes, and only then can it be admitted again. trusted:
        whether its KV may be found by others.
        """
        self._settle_place(sequence)
        if trusted:
            self.blocks.index(sequence, sequence.num_computed)
        num_blocks = blocks_for(sequence.num_computed, self.config.block_size)
        host_blocks = self.host.take(num_blocks) if swap else None
        self.counters.preemptions += 1
        sequence.num_preemptions += 1
        if host_blocks is None:
            self._note(sequence, DecisionKind.PREEMPTED, tokens=sequence.num_computed, blocks=len(sequence.blocks))
            self._leave_row(sequence)
            self._requeue(sequence)
            return
        self._note(sequence, DecisionKind.SWAPPED_OUT, tokens=sequence.num_computed, blocks=num_blocks)
        self.counters.preemptions_swap += 1
        self._swap_out += zip(sequence.blocks, host_blocks, strict=False)
        sequence.host_blocks = host_blocks
        self._leave_row(sequence)
        sequence.queue = Queue.SWAPPED
        self._swapped.insert(sequence)

    def _end(self, sequence: LiveSequence, reason: EndReason) -> End:
        if sequence.queue is Queue.RUNNING:
            self._settle_place(sequence)
            if reason is not EndReason.NON_FINITE:
                self.blocks.index(sequence, sequence.num_computed)
            self._leave_row(sequence)
        elif sequence.queue is Queue.SWAPPED:
            self._swapped.remove(sequence)
            self._drop_host_blocks(sequence)
        else:
            self._waiting.remove(sequence)
            if sequence.group is not None:
                sequence.group.drop_waiting(sequence)
        if reason is EndReason.NON_FINITE:
            sequence.num_void_plans = sequence.num_in_flight_plans  # that its rows in those fail too says nothing new
        sequence.queue = Queue.FINISHED
        del self._live[sequence.spec.sequence_id]
        self.counters.finished += 1
        return End(
            sequence_id=sequence.spec.sequence_id,
            reason=reason,
            num_output_tokens=sequence.num_output,
            stop_token_id=sequence.token_ids[-1] if reason is EndReason.STOP else None,
        )

    def _settle_place(self, sequence: LiveSequence) -> None:
        """Takes a running sequence out of whatever it is doing, before it leaves its row."""
        group = sequence.group
        if sequence.decoding is not None:
            self._stop_decoding(sequence)
        elif sequence in self._catching_up:
            self._catching_up.remove(sequence)
        elif group is not None and sequence in group.pending:
            group.pending.remove(sequence)
            if not group.pending:
                self._forking.remove(group)
                self._unpin(group)
        if group is not None and group.pending and sequence is group.leader and not group.ready:
            self._part(group)

    def _stop_decoding(self, sequence: LiveSequence) -> None:
        """Takes a member out of the decode batch; plans in flight that compute a token of it note that it is gone."""
        for plan in self._in_flight:
            if plan.clock >= sequence.joined_at:
                start = sequence.num_computed + plan.clock - sequence.joined_at
                plan.gone[sequence.spec.sequence_id] = PlannedRow(sequence, start, 1, True)
        self._decoding.leave(sequence)

    def _leave_row(self, sequence: LiveSequence) -> None:
        self._running.remove(sequence)
        if sequence.num_computed > 0:  # else its row is reserved for a fork, and the worker knows nothing of it
            self._released_rows.append(sequence.row)
        self._free_rows.append(sequence.row)
        sequence.row = -1
        self.blocks.release(sequence)

    def _requeue(self, sequence: LiveSequence) -> None:
        sequence.queue = Queue.WAITING
        sequence.num_computed = 0
        self._waiting.insert(sequence)

    def _drop_host_blocks(self, sequence: LiveSequence) -> None:
        """Gives up a sequence's KV on the host; a copy into it that is not sent yet is not sent at all."""
        dropped, sequence.host_blocks = sequence.host_blocks, []
        self._swap_out = [pair for pair in self._swap_out if pair[1] not in dropped]
        self.host.release(dropped)

    # -- results that went wrong, workers that went away ---------------------------------------------------------------

    def _pop_settled(self) -> None:
        self._decoding.settled = self._in_flight.popleft().clock + 1

    def _settle_flagged(self, plan: PlanInFlight, result: StepResult, settlement: Settlement) -> None:
        """Books a result row by row. Flagged rows come first, those of ended sequences too: a sharer's token of this
        very plan, whatever its row, is not to be trusted either."""
        for sequence in plan.decodes.sequences:
            if sequence.spec.sequence_id not in plan.gone:
                self._stop_decoding(sequence)
        rows = [*(plan.gone[sequence_id] for sequence_id in plan.decodes.sequence_ids), *plan.rows]
        stopped = [planned.sequence for planned in rows if planned.sequence.queue is Queue.RUNNING]
        for planned, flag in zip(rows, result.flags, strict=True):
            if flag is not RowFlag.OK and not planned.sequence.num_void_plans:
                self._requeue_sharers(planned.sequence)
        self._pop_settled()
        token_index = 0
        for planned, flag, num_sampled in zip(rows, result.flags, result.num_sampled, strict=True):
            settlement.settle_row(planned, token_index, flag)
            token_index += num_sampled
        for sequence in stopped:
            running = sequence.queue is Queue.RUNNING and sequence.decoding is None
            if running and sequence.num_uncomputed > 0 and sequence not in self._catching_up:
                self._catching_up.insert(sequence)

    def _requeue_sharers(self, failed: LiveSequence) -> None:
        """A row's KV is not to be trusted: nobody finds its blocks again, and those who may share them compute anew.

        What plans in flight compute for the sharers comes from that KV too, and is dropped; also for those that were
        preempted since.
        """
        self.blocks.distrust(failed)
        for sequence in list(self._live.values()):
            if sequence is failed or not sequence.may_share_kv(failed):
                continue
            if sequence.queue is Queue.RUNNING:
                self._preempt(sequence, swap=False, trusted=False)
            elif sequence.queue is Queue.SWAPPED:
                self._swapped.remove(sequence)
                self._drop_host_blocks(sequence)
                self._requeue(sequence)
            sequence.num_void_plans = sequence.num_in_flight_plans

    def _forget_worker_state(self, num_blocks: int, num_host_blocks: int) -> None:
        self._in_flight.clear()
        self._decoding = DecodeBatch()
        self._catching_up.clear()
        for group in self._forking:
            group.pending, group.pinned = [], None
        self._forking.clear()
        self._free_rows = list(range(self.config.max_num_seqs - 1, -1, -1))
        self._released_rows, self._swap_out = [], []
        self.blocks.reset(num_blocks)
        self.host = HostPool(num_host_blocks)

    def _end_too_large(self, num_blocks: int) -> tuple[End, ...]:
        """Ends what can never fit into a smaller pool, with LENGTH if it has all that fits there; groups that cannot be
        admitted whole any more part."""
        block_size = self.config.block_size
        for sequence in self._waiting:
            if sequence.group is not None and sequence.group.waiting:
                together = blocks_for(len(sequence.spec.prompt), block_size) + self._num_siblings(sequence)
                if together > num_blocks:
                    sequence.group.waiting = []
        ends = []
        for sequence in list(self._waiting):
            sequence.max_tokens = max_tokens_within(sequence.spec, num_blocks, block_size)
            if blocks_needed(sequence.spec, block_size) > num_blocks:
                ends.append(self._end(sequence, EndReason.CAPACITY))
            elif sequence.num_output >= sequence.max_tokens:
                ends.append(self._end(sequence, EndReason.LENGTH))
        return tuple(ends)

    # -- views -------------------------------------------------------------------------------------------------------

    @property
    def _watermark(self) -> int:
        """Blocks that an admission must leave; none if nothing runs, because then nothing else can free any."""
        return self.config.watermark if self._running else 0

    def _note(self, sequence: LiveSequence, kind: DecisionKind, **numbers: int) -> None:
        sequence.history.record(self._next_step_id, kind, **numbers)

    def sequence(self, sequence_id: int) -> LiveSequence | None:
        """A live sequence, to look at."""
        return self._live.get(sequence_id)

    def snapshot(self) -> Snapshot:
        """All queues, rows and blocks as they are now. Takes time in proportion to sequences and blocks."""
        pool = self.blocks.pool
        return Snapshot(
            epoch=self.epoch,
            plans_in_flight=tuple(plan.step_id for plan in self._in_flight),
            waiting=tuple(SequenceSnapshot.of(sequence) for sequence in self._waiting),
            running=tuple(SequenceSnapshot.of(sequence) for sequence in self._running),
            swapped=tuple(SequenceSnapshot.of(sequence) for sequence in self._swapped),
            num_live=len(self._live),
            num_deadlines=len(self._deadlines),
            free_rows=tuple(sorted(self._free_rows)),
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_indexed_blocks=len(self.blocks.prefix_cache),
            block_references=tuple(pool.references(block) for block in range(pool.num_blocks)),
            pinned_blocks=tuple(group.pinned for group in self._forking if group.pinned is not None),
            num_host_blocks=self.host.num_blocks,
            num_free_host_blocks=self.host.num_free,
        )
