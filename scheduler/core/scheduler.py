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

from collections.abc import Iterator

from scheduler.core import handover, recovery, suspects
from scheduler.core.block_manager import BlockManager
from scheduler.core.config import CoreConfig
from scheduler.core.counters import Counters
from scheduler.core.deadlines import Deadlines
from scheduler.core.drop_prefix import PrefixSelection, drop_prefix
from scheduler.core.forks import Group
from scheduler.core.handover import Handover
from scheduler.core.history import DecisionKind
from scheduler.core.host_pool import HostPool
from scheduler.core.limits import check_group, max_len_within
from scheduler.core.live import RUNNING, LiveSequence
from scheduler.core.places import Places
from scheduler.core.plan import IDLE, WAITING, Idle, StepPlan, Waiting
from scheduler.core.plan_builder import PlanBuilder, PlanInFlight
from scheduler.core.preemption import Preemption
from scheduler.core.preemption_policy import Rates
from scheduler.core.result import End, EndReason, StepOutput, StepResult
from scheduler.core.sequence import SequenceSpec
from scheduler.core.settle import Settlement, check_result
from scheduler.core.snapshot import Snapshot

# How far behind a sequence that waits for blocks the queue is searched for one that fits.
OVERTAKE_WINDOW = 16


class Scheduler:
    """Decides what one worker group computes in each step. Not thread-safe; one task calls it."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.counters = Counters()
        self.epoch = 0
        self._at = Places(config, self.counters)
        self._preemption = Preemption(config, self._at)
        self._deadlines = Deadlines()
        self._num_arrivals = 0
        self._num_dropped = 0

    @property
    def blocks(self) -> BlockManager:
        """Block tables and prefix cache."""
        return self._at.blocks

    @property
    def host(self) -> HostPool:
        """The host blocks of swapped sequences."""
        return self._at.host

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission."""
        return len(self._at.waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of those."""
        return self._at.waiting.num_prompt_tokens

    @property
    def num_tokens_in_flight(self) -> int:
        """Token positions in plans sent whose result is not back."""
        return sum(plan.num_tokens for plan in self._at.in_flight)

    @property
    def num_running(self) -> int:
        """Sequences that hold a row."""
        return len(self._at.running)

    @property
    def num_swapped(self) -> int:
        """Sequences whose KV lies in the host pool."""
        return len(self._at.swapped)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens of prompts that wait, or are on their way: about what is computed before all decode."""
        return self.num_waiting_tokens + sum(sequence.num_uncomputed for sequence in self._at.catching_up)

    @property
    def num_plans_in_flight(self) -> int:
        """Plans sent whose result is not back."""
        return len(self._at.in_flight)

    @property
    def only_decodes(self) -> bool:
        """Whether every live sequence lacks one token at most: nobody waits, or has a prompt to compute."""
        at = self._at
        return not (at.waiting or at.swapped or at.catching_up or at.forking)

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
        check_group(specs, self.config, self._at.blocks.pool.num_blocks, self._at.waiting, self._at.live)
        members = []
        for spec in specs:
            sequence = self._arrive(spec)
            self._at.note(sequence, DecisionKind.QUEUED, waiting=len(self._at.waiting))
            members.append(sequence)
        if len(members) > 1:
            group = Group(members)
            for sequence in list(members):
                sequence.group = group

    def _arrive(self, spec: SequenceSpec) -> LiveSequence:
        priority = spec.priority if self.config.policy == "priority" else 0
        arrival = self._num_arrivals if spec.arrival is None else spec.arrival
        self._num_arrivals = max(self._num_arrivals, arrival + 1)
        sequence = LiveSequence(spec, arrival, priority)
        sequence.max_len = max_len_within(spec, self._at.blocks.pool.num_blocks, self.config.block_size)
        self._at.live[spec.sequence_id] = sequence
        self._at.waiting.insert(sequence)
        if spec.deadline_ns is not None:
            self._deadlines.add(spec.deadline_ns, spec.sequence_id, self._at.live, len(self._at.live))
        return sequence

    def withdraw(self, sequence_id: int) -> tuple[Handover, ...]:
        """Takes a waiting sequence out for another worker's core, with those that wait to be admitted together with it.

        Empty, and nothing has changed, if it is not live, does not wait, or a plan of its is in flight.
        """
        return handover.withdraw(self._at, sequence_id)

    def adopt(self, handovers: tuple[Handover, ...]) -> None:
        """Queues what one call of another core's `withdraw` gave, at its place in the order of service. A suspect among
        them stops all that runs. How many wait already does not matter: these were accepted long ago.

        Raises DuplicateSequenceError, NeverFitsError or InvalidSequenceError, and then nothing has changed.
        """
        handover.check(self._at, handovers, self._at.blocks.pool.num_blocks)
        handover.settle_in(self._at, [self._arrive(one.spec) for one in handovers], handovers)

    def finish(self, sequence_id: int, reason: EndReason, num_output_tokens: int | None = None) -> End | None:
        """Ends a sequence from outside; its blocks serve others from the next plan on. None if it is not live.

        num_output_tokens: the output tokens that are kept, where a stop string ended it; tokens that were sampled since
        count as wasted. None keeps all.
        """
        sequence = self._at.live.get(sequence_id)
        if sequence is None:
            return None
        if num_output_tokens is None:
            return self._at.end(sequence, reason)
        self._num_dropped += max(0, sequence.num_output - num_output_tokens)
        end = self._at.end(sequence, reason)
        return end._replace(num_output_tokens=num_output_tokens, stop_token_id=None)

    def finish_all(self, reason: EndReason) -> tuple[End, ...]:
        """Ends every live sequence: running ones, then swapped, then waiting ones, each in order of service."""
        everyone = [*self._at.running, *self._at.swapped, *self._at.waiting]
        return tuple(self._at.end(sequence, reason) for sequence in everyone)

    def expire(self, now_ns: int) -> tuple[End, ...]:
        """Ends all sequences whose deadline has passed, in whatever queue."""
        ends = [self.finish(sequence_id, EndReason.DEADLINE) for sequence_id in self._deadlines.pop_expired(now_ns)]
        return tuple(end for end in ends if end is not None)

    def drop_prefix(self, selection: PrefixSelection) -> tuple[int, int]:
        """Makes cached prefixes unfindable; returns how many blocks were dropped, and how many stay, being in use."""
        return drop_prefix(self._at.blocks, selection)

    def set_rates(self, *, prefill_tokens_per_s: int, copy_bytes_per_s: int) -> None:
        """Tells the preemption policy what was measured. Both at least 1."""
        self._preemption.policy.rates = Rates(
            prefill_tokens_per_s=prefill_tokens_per_s, copy_bytes_per_s=copy_bytes_per_s
        )

    def schedule(self) -> StepPlan | Waiting | Idle:
        """Plans the next step. Waiting: a result must come first. Idle: nothing to run and none to wait for."""
        if len(self._at.in_flight) >= self.config.max_plans_in_flight:
            return WAITING
        plan = PlanBuilder(self._at.next_step_id, self.config.max_num_batched_tokens)
        preempted = self._extend_tables(plan)
        if not preempted and not self._at.suspects:
            self._preemption.make_room_for_urgent(plan)
        self._compute_running(plan)
        if self._at.suspects:
            self._try_suspect(plan)
        elif not preempted:
            self._swap_in(plan)
            self._admit_waiting(plan)
        if not plan.rows and not len(self._at.decoding):
            return WAITING if self._at.in_flight else IDLE
        return self._send(plan)

    def update(self, result: StepResult) -> StepOutput:
        """Settles the oldest plan in flight. A result of another epoch is dropped.

        Raises ResultMismatchError if the result does not answer that plan, and then nothing has changed.
        """
        if result.epoch != self.epoch:
            return StepOutput()
        plan = self._at.in_flight[0] if self._at.in_flight else None
        check_result(result, plan)
        assert plan is not None, "checked"
        settlement = Settlement(result, plan, self.counters)
        before = self.counters.kept_tokens, self.counters.generated_tokens
        if any(result.flags):
            recovery.settle_flagged(self._at, plan, result, settlement)
        else:
            self._at.pop_settled(result.tokens)
            settlement.settle_decodes()
            settlement.settle_rows()
        for planned in plan.rows:
            sequence = planned.sequence
            if sequence.queue is RUNNING and sequence.decoding is None:
                self._at.blocks.index(sequence, sequence.num_computed)
        self._waste_dropped(*before)
        ends = tuple(self._at.end(sequence, reason) for sequence, reason in settlement.ending)
        if self._at.suspects or self._at.survivors:
            suspects.clear(self._at)
        return settlement.output(ends)

    def requeue_all(self, num_blocks: int, num_host_blocks: int = 0) -> tuple[End, ...]:
        """The worker and all it held are gone: every sequence waits again, from its settled tokens, at its old place.

        num_blocks, num_host_blocks: of the worker that comes next. What can never fit into it ends with CAPACITY, and
        what ran alone as a suspect with KILLED_WORKER (see `suspects.py`).
        """
        self.epoch += 1
        return recovery.requeue_all(self._at, num_blocks, num_host_blocks)

    def _waste_dropped(self, kept_before: int, generated_before: int) -> None:
        """Counts tokens that were kept and then dropped by `finish` as wasted, as soon as no counter shrinks by it."""
        if self._num_dropped:
            counters = self.counters
            grown = min(counters.kept_tokens - kept_before, counters.generated_tokens - generated_before)
            moved = min(self._num_dropped, grown)
            self._num_dropped -= moved
            counters.kept_tokens -= moved
            counters.generated_tokens -= moved
            counters.wasted_tokens += moved

    # -- the steps of schedule ---------------------------------------------------------------------------------------

    def _extend_tables(self, plan: PlanBuilder) -> bool:
        """Step 1: running sequences get the blocks for their next tokens, in order of service.

        When the pool is dry somebody later in that order is preempted, or the sequence itself if it is the last.
        Returns whether anybody was.
        """
        preempted = False
        needy = self._at.decoding.take_full()
        if not any(map(self._lacks_blocks, self._at.catching_up)):
            edits = self._at.blocks.append_each(needy)
            if edits is not None:
                plan.edits += edits
                self._at.decoding.turn_pages(needy)
                return False
        if self._at.catching_up:
            needy = sorted([*needy, *self._at.catching_up], key=lambda sequence: sequence.key)
        for sequence in needy:
            if sequence.queue is not RUNNING:
                continue  # preempted for one before it
            if sequence.decoding is not None:
                wanted = len(sequence.blocks) * self.config.block_size + 1
            else:
                wanted = sequence.planned_len
            first_index = len(sequence.blocks)
            grown = self._at.blocks.append(sequence, wanted)
            while grown is None and sequence.queue is RUNNING:
                self._preemption.preempt_for(sequence)
                preempted = True
                grown = self._at.blocks.append(sequence, wanted)
            if grown is not None:
                plan.append_blocks(sequence.row, first_index, grown)
                if sequence.decoding is not None:
                    self._at.decoding.set_date(sequence, self.config.block_size)
        return preempted

    def _compute_running(self, plan: PlanBuilder) -> None:
        """Step 1, continued: every decode gets its token and every fork its first, then prompts get chunks of what is
        left of the budget. A long prompt never holds up a sequence that lacks one token."""
        plan.budget -= len(self._at.decoding)
        for group in [group for group in self._at.forking if group.ready]:
            self._fork(plan, group)
        if self._at.catching_up:
            for sequence in sorted(self._at.catching_up, key=lambda sequence: sequence.num_uncomputed > 1):
                count = min(sequence.num_uncomputed, plan.budget)
                if count > 0 and self._compute(plan, sequence, count):
                    self._at.catching_up.remove(sequence)

    def _swap_in(self, plan: PlanBuilder) -> None:
        """Step 2: swapped sequences come back, in order of service, unless somebody more urgent waits."""
        while self._at.swapped and self._at.free_rows and plan.budget > 0:
            sequence = self._at.swapped[0]
            if self._at.waiting and self._at.waiting[0].key[0] < sequence.key[0]:
                return
            if sequence.num_in_flight_plans:
                return
            allocation = self._at.blocks.admit(sequence, self._at.watermark)
            if allocation is None:
                return
            found = allocation.num_cached_tokens // self.config.block_size
            moves = list(zip(sequence.host_blocks, sequence.blocks, strict=False))[found:]
            plan.swap_in += moves
            self.counters.swapped_in_blocks += len(moves)
            self._at.note(sequence, DecisionKind.SWAPPED_IN, blocks=len(moves), found=found)
            self._at.host.release(sequence.host_blocks)
            sequence.host_blocks = []
            self._at.swapped.remove(sequence)
            sequence.num_computed = max(sequence.num_computed, allocation.num_cached_tokens)
            self._enter(plan, sequence)

    def _admit_waiting(self, plan: PlanBuilder) -> None:
        """Step 3: admits in order of service while rows, budget and blocks for all known tokens are there.

        One that waits for blocks may be passed by later ones that fit, `max_overtakes` times; then it holds the others
        up. Nobody passes one that waits for rows, or for the result of a plan that it was preempted from.
        """
        passed: list[LiveSequence] = []
        position = 0
        while position < len(self._at.waiting) and plan.budget > 0:
            sequence = self._at.waiting[position]
            if self._at.swapped and sequence.key[0] >= self._at.swapped[0].key[0]:
                return
            if sequence.group is not None and sequence in sequence.group.waiting[1:]:
                position += 1
                continue
            if sequence.num_in_flight_plans or len(self._at.free_rows) <= self._at.num_siblings(sequence):
                return
            if self._admit(plan, sequence):
                for other in passed:
                    other.num_overtaken += 1
                    self._at.note(other, DecisionKind.OVERTAKEN, times=other.num_overtaken)
            else:
                passed.append(sequence)
                position += 1
            if any(other.num_overtaken >= self.config.max_overtakes for other in passed) or position > OVERTAKE_WINDOW:
                return

    def _try_suspect(self, plan: PlanBuilder) -> None:
        """Steps 2 and 3 while there are suspects: the first of them is admitted once nothing else is in flight."""
        if not self._at.running and not self._at.in_flight:
            admitted = self._admit(plan, self._at.suspects[0])
            assert admitted, "the pool is empty, and what does not fit into it has ended"

    def _send(self, plan: PlanBuilder) -> StepPlan:
        """Closes the plan: from here on it is on its way."""
        plan.decodes = self._at.decoding.columns()
        released, self._at.released_rows = self._at.released_rows, []
        swap_out, self._at.swap_out = self._at.swap_out, []
        self.counters.swapped_out_blocks += len(swap_out)
        built = plan.build(released, swap_out)
        in_flight = PlanInFlight(
            plan.step_id, self._at.decoding.clock, plan.decodes, tuple(plan.rows), built.max_samples
        )
        self._at.in_flight.append(in_flight)
        self._at.next_step_id += 1
        self.counters.steps += 1
        self.counters.computed_tokens += in_flight.num_tokens
        self._at.decoding.clock += 1
        joining = [sequence for sequence in reversed(self._at.joining) if sequence.planned_len < sequence.max_len]
        self._at.joining.clear()
        for sequence in self._at.decoding.take_last():
            self._at.stop_decoding(sequence, heir=joining.pop() if joining else None)
        for sequence in reversed(joining):
            self._at.decoding.join(sequence)
        for group in self._at.copied:
            self._at.unpin(group)
        self._at.copied.clear()
        return built

    def _lacks_blocks(self, sequence: LiveSequence) -> bool:
        return sequence.planned_len > len(sequence.blocks) * self.config.block_size

    # -- computing ---------------------------------------------------------------------------------------------------

    def _compute(self, plan: PlanBuilder, sequence: LiveSequence, count: int) -> bool:
        """Plans tokens of a sequence. Returns whether the last known one is among them: then it decodes, from the next
        plan on."""
        caught_up = plan.compute(sequence, count)
        if caught_up:
            self._at.joining.append(sequence)
            if sequence.group is not None and sequence is sequence.group.leader:
                sequence.group.ready = True
        self._at.blocks.index(sequence, sequence.num_computed)
        return caught_up

    def _enter(self, plan: PlanBuilder, sequence: LiveSequence) -> None:
        """Gives a row to a sequence that has its blocks, and plans its first tokens."""
        sequence.queue = RUNNING
        sequence.row = self._at.free_rows.pop()
        self._at.running.insert(sequence)
        plan.admit(sequence)
        if not self._compute(plan, sequence, min(sequence.num_uncomputed, plan.budget)):
            self._at.catching_up.insert(sequence)

    def _admit(self, plan: PlanBuilder, sequence: LiveSequence) -> bool:
        """Admits a waiting sequence, its siblings with it; False if there are not enough blocks."""
        num_siblings = self._at.num_siblings(sequence)
        allocation = self._at.blocks.admit(sequence, self._at.watermark, num_siblings)
        if allocation is None:
            return False
        if self.config.enable_prefix_caching:
            self.counters.prefix_cache_queries += len(sequence.token_ids)
            self.counters.prefix_cache_hits += allocation.num_cached_tokens
        self._at.note(sequence, DecisionKind.ADMITTED, blocks=len(sequence.blocks), tokens=len(sequence.token_ids))
        if allocation.num_cached_tokens:
            self._at.note(sequence, DecisionKind.PREFIX_HIT, tokens=allocation.num_cached_tokens)
        self._at.waiting.remove(sequence)
        sequence.num_computed = allocation.num_cached_tokens
        if num_siblings and sequence.group is not None:
            self._at.reserve_forks(sequence.group, allocation.siblings)
        self._enter(plan, sequence)
        return True

    # -- forks -------------------------------------------------------------------------------------------------------

    def _fork(self, plan: PlanBuilder, group: Group) -> None:
        """The prompt's KV is planned: each sibling copies its partial block and computes the last prompt token anew."""
        self._at.forking.remove(group)
        pending, group.pending = group.pending, []
        for child in pending:
            if group.pinned is not None:
                plan.copy_on_write.append((group.pinned, child.blocks[-1]))
            child.num_computed = len(child.spec.prompt) - 1
            child.nodes = group.leader.nodes[: len(child.blocks) - 1]
            child.num_indexed = len(child.nodes)
            self.counters.forks += 1
            self._at.note(child, DecisionKind.FORKED, shared=len(child.blocks) - 1)
            plan.admit(child)
            self._compute(plan, child, 1)
        self._at.copied.append(group)  # the copy comes after swap-ins, so none of this plan may write to its source

    # -- views -------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> Iterator[LiveSequence]:
        """Sequences that wait for admission, in order of service, to look at."""
        return iter(self._at.waiting)

    @property
    def num_suspects(self) -> int:
        """Sequences that run alone, one after the other, because workers died while they were in flight."""
        return len(self._at.suspects)

    def sequence(self, sequence_id: int) -> LiveSequence | None:
        """A live sequence, to look at."""
        return self._at.live.get(sequence_id)

    def snapshot(self) -> Snapshot:
        """All queues, rows and blocks as they are now. Takes time in proportion to sequences and blocks."""
        return Snapshot.of(self._at, epoch=self.epoch, num_deadlines=len(self._deadlines))
