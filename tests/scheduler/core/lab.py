"""A scheduler core and toy workers on one bench, with every verb recorded and every answer checked.

The lab plays the engine: it sends plans to the worker of the moment, holds results back as long as it is told to, and
compares each token with what the toy model generates undisturbed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduler.core.config import CoreConfig
from scheduler.core.errors import InvalidSequenceError, NeverFitsError, QueueFullError, SchedulerError
from scheduler.core.handover import Handover, blocks_needed
from scheduler.core.live import Queue, blocks_for
from scheduler.core.plan import Idle, StepPlan, Waiting
from scheduler.core.result import End, EndReason, StepOutput, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.core.snapshot import SequenceSnapshot, Snapshot
from tests.scheduler.core import toy_model
from tests.scheduler.core.toy_worker import ToyWorker

Answer = StepPlan | Waiting | Idle | StepOutput | End | tuple[End, ...] | tuple[Handover, ...] | str | None
Verb = Callable[[Scheduler], Answer]


@dataclass(frozen=True, slots=True)
class Record:
    """One call of the core, repeatable on another one, and what it answered."""

    verb: Verb
    answer: Answer


def add_verb(specs: tuple[SequenceSpec, ...]) -> Verb:
    """`Scheduler.add_group`, answering with the error's text where there is one."""
    return _refusable(lambda core: core.add_group(specs))


def _refusable(verb: Callable[[Scheduler], None]) -> Verb:
    def call(core: Scheduler) -> Answer:
        try:
            verb(core)
        except SchedulerError as error:
            return f"{type(error).__name__}: {error}"
        return None

    return call


class Lab:
    """One run of the core. `num_steps` counts plans and results."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.core = Scheduler(config)
        self.live: dict[int, SequenceSpec] = {}
        """Sequences that must be live, in order of arrival."""
        self.outputs: dict[int, list[int]] = {}
        self.scored: dict[int, int] = {}
        """Prompt tokens that have their logprobs, of sequences that asked for them."""
        self.ends: dict[int, End] = {}
        self.num_dropped = 0
        self.records: list[Record] = []
        self.undelivered: deque[StepResult] = deque()
        self.stale: deque[StepResult] = deque()
        self.away: list[tuple[Handover, ...]] = []
        """What was withdrawn for another worker and not adopted yet."""
        self.num_steps = 0
        self.num_faults = 0
        self._fatal_faults: set[int] = set()
        self._num_blocks = config.num_blocks
        self._num_host_blocks = config.num_host_blocks
        self._worker = self._new_worker()

    # -- verbs -------------------------------------------------------------------------------------------------------

    def add(self, *specs: SequenceSpec) -> bool:
        """Adds a group; whether it was accepted, as it must be unless it never fits or the queue is full."""
        needed = max(self._blocks_needed(spec) for spec in specs)
        together = blocks_for(len(specs[0].prompt), self.config.block_size) + len(specs) - 1
        full = self.core.num_waiting + len(specs) > self.config.max_num_waiting
        answer = self._call(add_verb(specs))
        if len(specs) > min(self.config.max_num_seqs, self.config.max_num_waiting):
            assert isinstance(answer, str) and answer.startswith(InvalidSequenceError.__name__)
            return False
        if max(needed, together) > self._num_blocks:
            assert isinstance(answer, str) and answer.startswith(NeverFitsError.__name__)
            return False
        if full:
            assert isinstance(answer, str) and answer.startswith(QueueFullError.__name__)
            return False
        assert answer is None
        for spec in specs:
            self.live[spec.sequence_id] = spec
            self.outputs[spec.sequence_id] = []
        return True

    def finish(self, sequence_id: int, reason: EndReason) -> None:
        """Ends a sequence from outside."""
        answer = self._call(lambda core: core.finish(sequence_id, reason))
        if sequence_id not in self.live:
            assert answer is None
        else:
            assert isinstance(answer, End) and answer.reason is reason
            self._end(answer)

    def stop(self, sequence_id: int, num_dropped: int) -> None:
        """A stop string ends a sequence; the last num_dropped of its tokens came past it. Needs a live sequence with
        more tokens than that."""
        output = self.outputs[sequence_id]
        kept = len(output) - num_dropped
        answer = self._call(lambda core: core.finish(sequence_id, EndReason.STOP, kept))
        assert answer == End(sequence_id=sequence_id, reason=EndReason.STOP, num_output_tokens=kept)
        self._end(answer._replace(reason=EndReason.ABORT, num_output_tokens=len(output)))
        self.ends[sequence_id] = answer
        self.num_dropped += num_dropped

    def expire(self, now_ns: int) -> None:
        """Lets the clock reach now_ns; exactly the live sequences with an earlier or equal deadline end."""
        due = {i for i, spec in self.live.items() if spec.deadline_ns is not None and spec.deadline_ns <= now_ns}
        answer = self._call(lambda core: core.expire(now_ns))
        assert isinstance(answer, tuple)
        assert {end.sequence_id for end in answer} == due
        for end in answer:
            assert end.reason is EndReason.DEADLINE
            self._end(end)

    def schedule(self, *, faulty_row: int | None = None) -> StepPlan | Waiting | Idle:
        """Plans a step and executes it at once; its result waits for `deliver`.

        faulty_row: picks a scheduled row, modulo their number, whose KV comes out broken.
        """
        before = self.core.snapshot()
        plan = self._call(lambda core: core.schedule())
        if isinstance(plan, StepPlan):
            self.num_steps += 1
            self._check_admissions(before, plan)
            self._check_decodes(before, plan)
            fault = None
            if faulty_row is not None:
                self.num_faults += 1
                fault = (self.num_faults, faulty_row % len(plan.rows))
            self.undelivered.append(self._worker.execute(plan, fault=fault))
        elif isinstance(plan, Waiting):
            assert self.undelivered
            if len(before.plans_in_flight) < self.config.max_plans_in_flight:
                self._check_decodes(before, None)
        else:
            assert isinstance(plan, Idle) and not self.undelivered and not self.live
        return plan

    def deliver(self) -> StepOutput:
        """Delivers the oldest result."""
        return self._update(self.undelivered.popleft())

    def deliver_stale(self) -> None:
        """Delivers a result of a worker that is gone: it changes nothing."""
        before, counters = self.core.snapshot(), repr(self.core.counters)
        assert self._update(self.stale.popleft()) == StepOutput()
        assert (self.core.snapshot(), repr(self.core.counters)) == (before, counters)

    def set_rates(self, prefill_tokens_per_s: int, copy_bytes_per_s: int) -> None:
        """Tells the core what copying and computing cost."""
        self._call(
            lambda core: core.set_rates(prefill_tokens_per_s=prefill_tokens_per_s, copy_bytes_per_s=copy_bytes_per_s)
        )

    def lose_worker(self, num_blocks: int, num_host_blocks: int | None = None) -> None:
        """The worker dies with all its rows; the next one has this many blocks."""
        if num_host_blocks is not None:
            self._num_host_blocks = num_host_blocks
        host = self._num_host_blocks
        self.stale.extend(self.undelivered)
        self.undelivered.clear()
        before = self.core.snapshot()
        tried = [one.sequence_id for one in before.running if before.suspects and one.num_in_flight_plans]
        answer = self._call(lambda core: core.requeue_all(num_blocks, host))
        assert isinstance(answer, tuple)
        self._num_blocks = num_blocks
        for end in answer:
            spec = self.live[end.sequence_id]
            if end.reason is EndReason.LENGTH:
                assert end.num_output_tokens >= self._max_tokens(spec)
            elif end.reason is EndReason.KILLED_WORKER:
                assert tried == [end.sequence_id] == [*before.suspects[:1]], "it did not run alone"
            else:
                assert (end.reason, self._blocks_needed(spec) > num_blocks) == (EndReason.CAPACITY, True)
            self._end(end)
        self._worker = self._new_worker()

    def withdraw(self, sequence_id: int) -> None:
        """A sequence leaves for another worker, if it waits and no plan computes it."""
        before = {sequence.sequence_id: sequence for sequence in self.core.snapshot().waiting}
        answer = self._call(lambda core: core.withdraw(sequence_id))
        assert isinstance(answer, tuple)
        may_leave = sequence_id in before and not before[sequence_id].num_in_flight_plans
        assert bool(answer) == may_leave
        for handover in answer:
            assert isinstance(handover, Handover)
            assert handover.spec == self.live.pop(handover.spec.sequence_id)
            assert list(handover.output) == self.outputs[handover.spec.sequence_id]
        if answer:
            self.away.append(answer)  # type: ignore[arg-type]  # checked above

    def adopt(self, *, more_deaths: int = 0) -> None:
        """What left first comes, from a worker that died more_deaths times with it; it must be taken if it fits."""
        handovers = tuple(replace(one, num_deaths=one.num_deaths + more_deaths) for one in self.away.pop(0))
        answer = self._call(_refusable(lambda core: core.adopt(handovers)))
        if blocks_needed(handovers, self.config.block_size) > self._num_blocks:
            assert isinstance(answer, str) and answer.startswith(NeverFitsError.__name__)
            return
        assert answer is None
        self.live.update((one.spec.sequence_id, one.spec) for one in handovers)

    def drain(self) -> None:
        """Runs until nothing is left, within a number of steps that no schedule may exceed.

        Until the first waiting sequence is admitted nobody else is, so at worst every running one must end first, each
        in as many steps as it has tokens; after that it is itself at the head. Two more steps each are in flight.
        """
        sizes = [len(spec.prompt) + spec.max_tokens + 2 for spec in self.live.values()]
        bound = (len(sizes) + 1) * (sum(sizes) + 2)
        for _ in range(bound):
            while isinstance(self.schedule(), StepPlan):
                pass
            if not self.undelivered:
                break
            self.deliver()
        assert not self.live, f"{list(self.live)} still live after {bound} steps"

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The invariants that hold between any two calls."""
        core, config = self.core.snapshot(), self.config
        everyone = core.waiting + core.running + core.swapped
        assert sorted(sequence.sequence_id for sequence in everyone) == sorted(self.live)
        assert core.num_live == len(self.live)
        assert self.core.num_waiting_tokens == sum(sequence.num_prompt_tokens for sequence in core.waiting)
        counters = self.core.counters
        settled = counters.kept_tokens + counters.recomputed_tokens + counters.wasted_tokens
        assert counters.computed_tokens == settled + self.core.num_tokens_in_flight
        by_priority = config.policy == "priority"
        queues = ((Queue.WAITING, core.waiting), (Queue.RUNNING, core.running), (Queue.SWAPPED, core.swapped))
        for queue, members in queues:
            assert all(sequence.queue is queue for sequence in members)
            keys = [(sequence.priority * by_priority, sequence.arrival) for sequence in members]
            assert keys == sorted(set(keys))
        for sequence in core.waiting:
            assert (sequence.row, sequence.blocks, sequence.num_computed_tokens) == (None, (), 0)
        for sequence in core.swapped:
            assert (sequence.row, sequence.blocks) == (None, ())
            assert sequence.num_host_blocks == blocks_for(sequence.num_computed_tokens, config.block_size) > 0
        swapped_blocks = sum(sequence.num_host_blocks for sequence in core.swapped)
        assert swapped_blocks + core.num_free_host_blocks == core.num_host_blocks == self._num_host_blocks
        rows = [sequence.row for sequence in core.running if sequence.row is not None]
        assert sorted([*rows, *core.free_rows]) == list(range(config.max_num_seqs))

        tables = Counter(block for sequence in core.running for block in sequence.blocks)
        tables.update(core.pinned_blocks)
        assert tables == Counter(dict(enumerate(core.block_references)))
        assert all(len(set(sequence.blocks)) == len(sequence.blocks) for sequence in core.running)
        num_referenced = sum(count > 0 for count in core.block_references)
        assert core.num_free_blocks + core.num_cached_blocks + num_referenced == self._num_blocks
        assert core.num_cached_blocks <= core.num_indexed_blocks <= core.num_cached_blocks + num_referenced
        salts: dict[int, str] = {}
        for sequence in core.running:
            for block in sequence.blocks:
                salt = self.live[sequence.sequence_id].cache_salt
                assert salts.setdefault(block, salt) == salt
        if not config.enable_prefix_caching:
            assert core.num_indexed_blocks == 0
        if core.suspects:
            assert {sequence.sequence_id for sequence in core.running} <= {core.suspects[0]}, "a suspect runs alone"
            assert set(core.suspects) <= set(self.live)
        assert len(core.plans_in_flight) == len(self.undelivered) <= config.max_plans_in_flight
        for sequence in everyone:
            assert 0 <= sequence.num_in_flight_tokens <= sequence.num_in_flight_plans <= len(self.undelivered)
        if not core.plans_in_flight:
            self.check_accounts()

    def check_accounts(self) -> None:
        """Token accounting with no plan in flight."""
        counters = self.core.counters
        booked = counters.kept_tokens + counters.recomputed_tokens + counters.wasted_tokens
        assert counters.computed_tokens == booked
        # Dropped tokens are taken off as soon as others come.
        generated = sum(len(output) for output in self.outputs.values())
        assert generated - self.num_dropped <= counters.generated_tokens <= generated
        assert counters.finished == len(self.ends)

    def check_empty(self) -> None:
        """Nothing is left behind once everything has ended."""
        core = self.core.snapshot()
        assert not core.waiting and not core.running and not core.swapped and core.num_live == 0
        assert core.num_free_host_blocks == core.num_host_blocks
        assert not any(core.block_references)
        assert core.free_rows == tuple(range(self.config.max_num_seqs))

    def replay(self) -> None:
        """Repeats every call on a fresh core and expects the same answers."""
        core = Scheduler(self.config)
        for index, record in enumerate(self.records):
            assert record.verb(core) == record.answer, f"call {index} answers differently"
        assert core.snapshot() == self.core.snapshot()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _blocks_needed(self, spec: SequenceSpec) -> int:
        """Blocks without which it can never run; with an open end those of the prompt."""
        num_output = 1 if spec.open_ended else spec.max_tokens
        return blocks_for(len(spec.prompt) + num_output - 1, self.config.block_size)

    def _max_tokens(self, spec: SequenceSpec) -> int:
        """Tokens that it gets, with an open end as many as the pool holds; the KV of the last one needs no place."""
        places = self._num_blocks * self.config.block_size
        return min(spec.max_tokens, places + 1 - len(spec.prompt)) if spec.open_ended else spec.max_tokens

    def _new_worker(self) -> ToyWorker:
        return ToyWorker(
            self.config, num_blocks=self._num_blocks, num_host_blocks=self._num_host_blocks, epoch=self.core.epoch
        )

    def _call(self, verb: Verb) -> Answer:
        answer = verb(self.core)
        self.records.append(Record(verb, answer))
        return answer

    def _update(self, result: StepResult) -> StepOutput:
        self.num_steps += 1
        output = self._call(lambda core: core.update(result))
        assert isinstance(output, StepOutput)
        for sequence_id, token in zip(output.sequence_ids, output.token_ids, strict=True):
            assert sequence_id in self.live, "a token after the end"
            self.outputs[sequence_id].append(token)
        assert len(set(output.sequence_ids)) == len(output.sequence_ids)
        for scores in output.scores:
            assert scores.sequence_id in self.live, "logprobs after the end"
            before = self.scored.get(scores.sequence_id, 0)
            # The toy worker's logprob of a token is its position: each comes once, and in order.
            assert list(scores.logprobs) == list(range(before + 1, before + 1 + len(scores.logprobs)))
            self.scored[scores.sequence_id] = before + len(scores.logprobs)
        for end in output.ends:
            if end.reason is EndReason.LENGTH:
                assert end.num_output_tokens == self._max_tokens(self.live[end.sequence_id])
            self._end(end)
            if end.reason is EndReason.NON_FINITE:
                fault = self._worker.blame[result.step_id, end.sequence_id]
                assert fault not in self._fatal_faults, f"fault {fault} ended a neighbour, too"
                self._fatal_faults.add(fault)
        return output

    def _end(self, end: End) -> None:
        """Preemption equivalence: whatever was done to a sequence, it got what the undisturbed model generates."""
        spec = self.live.pop(end.sequence_id)
        self.ends[end.sequence_id] = end
        output = tuple(self.outputs[end.sequence_id])
        # An open end is where the pool ends; a worker with a smaller one may find it passed already.
        max_tokens = len(output) if spec.open_ended and end.reason is EndReason.LENGTH else spec.max_tokens
        undisturbed, reason = toy_model.generate(replace(spec, max_tokens=max_tokens))
        assert end.num_output_tokens == len(output)
        scored = self.scored.pop(end.sequence_id, 0)
        if spec.sampling.num_prompt_logprobs is None:
            assert scored == 0
        elif output:
            assert scored == len(spec.prompt) - 1
        if end.reason in (EndReason.STOP, EndReason.LENGTH):
            assert (output, end.reason) == (undisturbed, reason)
            assert end.stop_token_id == (output[-1] if reason is EndReason.STOP else None)
        else:
            assert output == undisturbed[: len(output)]
            assert len(output) < len(undisturbed), "ended from outside although it was complete"

    def _check_admissions(self, before: Snapshot, plan: StepPlan) -> None:
        """Who is admitted when, and whom that may cost anything."""
        after = self.core.snapshot()
        admitted = {admission.sequence_id for admission in plan.admissions}
        self._check_siblings(before, admitted, after)
        came_back = [sequence.sequence_id for sequence in before.swapped if sequence.sequence_id in admitted]
        assert came_back == [sequence.sequence_id for sequence in before.swapped[: len(came_back)]]
        waited = [sequence for sequence in before.waiting if sequence.sequence_id in admitted]
        assert all(sequence.num_in_flight_plans == 0 for sequence in waited)
        times_before = {sequence.sequence_id: sequence.num_overtaken for sequence in before.waiting}
        for sequence in after.waiting:
            behind = [one for one in waited if self._key(one) > self._key(sequence)]
            tried = bool(before.suspects)  # whom a suspect passes has not been overtaken for want of blocks
            if behind and not tried and sequence.sequence_id in times_before and sequence.leader is None:
                assert sequence.num_overtaken == times_before[sequence.sequence_id] + len(behind)
            assert sequence.num_overtaken <= self.config.max_overtakes
        lost = {sequence.sequence_id for sequence in before.running} - {one.sequence_id for one in after.running}
        if waited and lost:
            most_urgent = min(self._key(sequence)[0] for sequence in waited)
            assert all(
                self._key(sequence)[0] > most_urgent for sequence in before.running if sequence.sequence_id in lost
            )

    def _check_decodes(self, before: Snapshot, plan: StepPlan | None) -> None:
        """One that lacks one token gets it in the very next plan, whatever prompts there are, or is preempted."""
        preemptions = {sequence.sequence_id: sequence.num_preemptions for sequence in self.core.snapshot().running}
        scheduled = set(plan.rows if plan else ())
        for sequence in before.running:
            lacks_one = sequence.num_uncomputed_tokens == 1 and sequence.leader is None
            if lacks_one and preemptions.get(sequence.sequence_id) == sequence.num_preemptions:
                assert sequence.row in scheduled, f"sequence {sequence.sequence_id} lacks one token and must wait"

    def _check_siblings(self, before: Snapshot, admitted: set[int], after: Snapshot) -> None:
        """The sequences of a request that wait together get their rows together."""
        running = {sequence.sequence_id for sequence in after.running}
        for sequence in before.waiting:
            if sequence.leader is not None:
                assert (sequence.sequence_id in running) == (sequence.leader in admitted)

    def _key(self, sequence: SequenceSnapshot) -> tuple[int, int]:
        return (sequence.priority if self.config.policy == "priority" else 0, sequence.arrival)
