"""What would have happened: the recorded arrivals on a core with other limits and a simulated worker.

Time is virtual. Sequences come and are cancelled at their recorded times, and deadlines are what they were. The worker
executes plans in order, each for as long as the step model says, and copies at the rate that the core was told; it
generates the recorded tokens, so every sequence has its recorded length and end. A recorded loss of the worker happens
at its recorded time and lasts as long.

What the recording cannot know: tokens past a recorded cancel, deadline or failure. A sequence that gets further than it
did gets a token that ends nothing, until it is cancelled or reaches max_tokens. Callers that react to what they get
(the next turn of a chat) react at the recorded times.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from functools import partial
from typing import Any, Final

from scheduler.core.config import CoreConfig
from scheduler.core.plan import StepPlan
from scheduler.core.preemption_policy import Rates
from scheduler.core.result import EndReason, RowFlag, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.core.settle import END_OF_FLAG
from scheduler.pipeline import Pipeline
from scheduler.recording.replay import Observer, perform
from scheduler.recording.step_model import ShapeTracker, StepModel, num_swapped_blocks
from scheduler.recording.verbs import (
    ADD_GROUP,
    ADOPT,
    EXPIRE,
    FINISH,
    FINISH_AT,
    REQUEUE_ALL,
    SCHEDULE,
    SET_RATES,
    UPDATE,
    WITHDRAW,
    Verb,
    ends_in,
    specs_in,
)
from scheduler.recording.workload import Workload

_FOREVER_NS = 1 << 62
_FLAG_OF_END: Final = {end: flag for flag, end in END_OF_FLAG.items()}


class SimulatedWorker:
    """Answers plans with the tokens that a workload recorded."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._specs: dict[int, SequenceSpec] = {}
        self._rows: dict[int, list[int]] = {}  # row: [sequence id, index of its next output token]

    def know(self, spec: SequenceSpec) -> None:
        """Learns what ends a sequence."""
        self._specs[spec.sequence_id] = spec

    def execute(self, plan: StepPlan, epoch: int) -> StepResult:
        """The result of a plan."""
        for admission in plan.admissions:
            self._rows[admission.row] = [admission.sequence_id, admission.output_index]
        num_sampled, tokens, flags = [], [], []
        for row, samples in zip(plan.rows, plan.max_samples, strict=True):
            place = self._rows[row]
            flag = self._flag_at(*place) if samples else RowFlag.OK
            flags.append(flag)
            num_sampled.append(samples if flag is RowFlag.OK else 0)
            if samples and flag is RowFlag.OK:
                tokens.append(self._token_at(*place))
            place[1] += samples
        return StepResult(
            epoch=epoch,
            step_id=plan.step_id,
            num_sampled=tuple(num_sampled),
            tokens=tuple(tokens),
            flags=tuple(flags) if any(flags) else (),
        )

    def _token_at(self, sequence_id: int, index: int) -> int:
        recorded = self._workload.tokens.get(sequence_id, ())
        if index < len(recorded):
            return recorded[index]
        stops = self._specs[sequence_id].stop_token_ids
        return next(token for token in range(len(stops) + 1) if token not in stops)

    def _flag_at(self, sequence_id: int, index: int) -> RowFlag:
        end = self._workload.ends.get(sequence_id)
        at_end = index == len(self._workload.tokens.get(sequence_id, ()))
        return _FLAG_OF_END.get(end, RowFlag.OK) if at_end and end is not None else RowFlag.OK


class Simulation:
    """One run of a workload; each turn does what the engine's does, in the same order.

    observer: told of every call of the core. model, overhead_ns: time of a step, executing and besides.
    """

    def __init__(self, workload: Workload, config: CoreConfig, model: StepModel, observer: Observer) -> None:
        self.core = Scheduler(config)
        self._workload = workload
        self._model = model
        self._observer = observer
        self._events = deque(workload.events)
        self._worker = SimulatedWorker(workload)
        self._tracker = ShapeTracker()
        self._pipeline = Pipeline(self.core)
        self._in_flight: deque[tuple[int, StepResult]] = deque()
        self._copy_bytes_per_s = Rates().copy_bytes_per_s
        self._num_outputs: Counter[int] = Counter()  # of sequences that a stop string ends
        self._free_ns = 0
        self._back_ns = 0
        self._now_ns = self._events[0][0] if self._events else 0
        # The run is over when all have ended whose end is known; the others lived on when the recording ended.
        self._awaited = set(workload.ends)

    def run(self) -> None:
        """Runs until every sequence has ended that ended in the recording."""
        while self._awaited:
            self._turn()
            next_ns = self._next_ns()
            if next_ns is None:
                return
            self._now_ns = max(self._now_ns, next_ns)

    def _turn(self) -> None:
        now_ns = self._now_ns
        while self._events and self._events[0][0] <= now_ns:
            self._take_event(*self._events.popleft())
        while self._in_flight and self._in_flight[0][0] <= now_ns:
            result = self._in_flight.popleft()[1]
            output = self._call(UPDATE, result)
            self._pipeline.settle(result)
            self._num_outputs.update(id_ for id_ in output.sequence_ids if id_ in self._workload.stops)
        self._call(EXPIRE, now_ns)
        if now_ns >= self._back_ns:
            while plans := self._pipeline.next_message(partial(self._call, SCHEDULE)):
                results = [self._execute(plan, now_ns) for plan in plans]
                self._in_flight += [(self._free_ns, result) for result in results]  # that travel together, too
        self._stop()

    def _stop(self) -> None:
        """Ends what a stop string ended, with the same token: a front end hears of it when the next plan is sent."""
        stops = self._workload.stops
        for sequence_id in [id_ for id_, count in self._num_outputs.items() if count >= stops[id_]]:
            del self._num_outputs[sequence_id]
            self._call(FINISH_AT, sequence_id, EndReason.STOP, stops[sequence_id])

    def _execute(self, plan: StepPlan, now_ns: int) -> StepResult:
        duration_ns = max(1, round(self._duration_ns(plan)))
        self._free_ns = max(now_ns, self._free_ns) + duration_ns
        return replace(self._worker.execute(plan, self.core.epoch), execute_ns=duration_ns)

    def _duration_ns(self, plan: StepPlan) -> float:
        copied_bytes = num_swapped_blocks(plan) * self.core.config.bytes_per_block
        copy_ns = 1e9 * copied_bytes / self._copy_bytes_per_s
        return self._model.predict_ns(self._tracker.shape(plan)) + self._workload.overhead_ns + copy_ns

    def _take_event(self, time_ns: int, verb: Verb, arguments: tuple[Any, ...]) -> None:
        if verb is WITHDRAW:  # it may run here, where it waited in the recording; it goes all the same
            self._call(FINISH, arguments[0], EndReason.ABORT)
            return
        if verb in (ADD_GROUP, ADOPT):
            for spec in specs_in(arguments):
                self._worker.know(spec)
        elif verb is SET_RATES:
            self._copy_bytes_per_s = arguments[1]
        elif verb is REQUEUE_ALL:
            self._in_flight.clear()
            self._pipeline.clear()
            self._free_ns = 0
            if time_ns >= self._back_ns:
                self._back_ns = self._workload.outages.get(time_ns, _FOREVER_NS)
            arguments = (self.core.config.num_blocks, self.core.config.num_host_blocks)
        answer = self._call(verb, *arguments)
        if verb in (ADD_GROUP, ADOPT) and isinstance(answer, Exception):
            self._awaited.difference_update(spec.sequence_id for spec in specs_in(arguments))

    def _call(self, verb: Verb, *arguments: Any) -> Any:
        answer = perform(self.core, verb, arguments)
        self._observer(self.core, self._now_ns, verb, arguments, answer)
        self._awaited.difference_update(end.sequence_id for end in ends_in(answer))
        return answer

    def _next_ns(self) -> int | None:
        """When something happens next."""
        times = [self._events[0][0]] if self._events else []
        times += [self._in_flight[0][0]] if self._in_flight else []
        times += [self.core.next_deadline_ns] if self.core.next_deadline_ns is not None else []
        times += [self._back_ns] if self._now_ns < self._back_ns < _FOREVER_NS else []
        return min(times, default=None)
