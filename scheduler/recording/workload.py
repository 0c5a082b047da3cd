"""What a recording says about the world outside the core: who came and went when, what was generated, how fast."""

from __future__ import annotations

from array import array
from statistics import median
from typing import Any

from scheduler.core.plan import StepPlan
from scheduler.core.result import EndReason, StepOutput
from scheduler.core.scheduler import Scheduler
from scheduler.recording.step_model import ShapeTracker, StepShape, num_swapped_blocks
from scheduler.recording.verbs import ADOPT, EXPIRE, FINISH_AT, REQUEUE_ALL, SCHEDULE, UPDATE, Verb, ends_in


class Workload:
    """Filled by observing a replay.

    events: calls that come from outside (arrivals, cancels, losses of the worker), with their times, in order.
    tokens: the output of every sequence, as far as it got. ends: why each ended; the others lived to the end.
    stops: the number of output tokens of those that a stop string ended, wherever they were then.
    samples: shape and execution time of every step that swapped nothing and whose result came back.
    outages: when a worker was lost, and when the next plan was sent; a loss that is not here lasted to the end.
    """

    def __init__(self) -> None:
        self.events: list[tuple[int, Verb, tuple[Any, ...]]] = []
        self.tokens: dict[int, array[int]] = {}
        self.ends: dict[int, EndReason] = {}
        self.stops: dict[int, int] = {}
        self.samples: list[tuple[StepShape, int]] = []
        self.outages: dict[int, int] = {}
        self._overheads_ns = array("q")
        self._tracker = ShapeTracker()
        self._in_flight: dict[int, tuple[StepShape, bool, int]] = {}
        self._last_update_ns = 0
        self._lost_ns: int | None = None

    @property
    def overhead_ns(self) -> float:
        """What a step usually takes besides its execution: the way there and back, and the engine's turn."""
        return max(0.0, median(self._overheads_ns)) if self._overheads_ns else 0.0

    def observe(self, core: Scheduler, time_ns: int, verb: Verb, arguments: tuple[Any, ...], answer: Any) -> None:
        """Takes in one call and its answer."""
        if verb is SCHEDULE:
            if isinstance(answer, StepPlan):
                self._on_plan(time_ns, answer)
        elif verb is UPDATE:
            if isinstance(answer, StepOutput):
                self._on_result(time_ns, arguments[0].step_id, arguments[0].execute_ns, answer)
        elif verb is FINISH_AT:
            self.stops[arguments[0]] = arguments[2]
        elif verb is not EXPIRE:  # deadlines come with the sequences
            self.events.append((time_ns, verb, arguments))
            if verb is ADOPT:
                self.tokens.update((one.spec.sequence_id, array("Q", one.output)) for one in arguments[0])
            if verb is REQUEUE_ALL:
                self._in_flight.clear()
                self._lost_ns = time_ns if self._lost_ns is None else self._lost_ns
        for end in ends_in(answer):
            self.ends[end.sequence_id] = end.reason

    def _on_plan(self, time_ns: int, plan: StepPlan) -> None:
        self._in_flight[plan.step_id] = (self._tracker.shape(plan), num_swapped_blocks(plan) > 0, time_ns)
        if self._lost_ns is not None:
            self.outages[self._lost_ns] = time_ns
            self._lost_ns = None

    def _on_result(self, time_ns: int, step_id: int, execute_ns: int, output: StepOutput) -> None:
        if step_id not in self._in_flight:
            return  # of an older epoch
        shape, swaps, sent_ns = self._in_flight.pop(step_id)
        if not swaps:
            self.samples.append((shape, execute_ns))
        self._overheads_ns.append(time_ns - max(sent_ns, self._last_update_ns) - execute_ns)
        self._last_update_ns = time_ns
        for sequence_id, token in zip(output.sequence_ids, output.token_ids, strict=True):
            self.tokens.setdefault(sequence_id, array("Q")).append(token)
