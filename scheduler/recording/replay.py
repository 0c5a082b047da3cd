"""Runs a core over a recording and compares every plan with the recorded one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from scheduler.core.errors import SchedulerError
from scheduler.core.scheduler import Scheduler
from scheduler.recording.plans import Outcome, PlanImage, describe_exception, outcome_lines, outcome_of
from scheduler.recording.reader import Call, Recording
from scheduler.recording.verbs import SCHEDULE, Verb

Observer = Callable[[Scheduler, int, Verb, tuple[Any, ...], Any], None]
"""Told after each call: the core, the time in nanoseconds, the verb, its arguments, and the answer or exception."""

_CONTEXT_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where replay and recording part. step_id: of the plan, or the one that would have come next."""

    step_id: int
    call_number: int
    seconds: float
    recorded: Outcome | None
    replayed: Outcome

    def lines(self) -> list[str]:
        """For people: both answers as a diff."""
        title = f"step {self.step_id} differs (call {self.call_number}, {self.seconds:.3f} s into the recording)"
        if self.recorded is None:
            return [title, f"  the core fails: {self.replayed}"]
        return [
            title,
            *unified_diff(
                outcome_lines(self.recorded),
                outcome_lines(self.replayed),
                "recorded",
                "replayed",
                n=_CONTEXT_LINES,
                lineterm="",
            ),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """num_steps: plans that were equal. num_calls: calls of the core, the one that differs included."""

    num_steps: int
    num_calls: int
    seconds: float
    difference: Difference | None


def perform(core: Scheduler, verb: Verb, arguments: tuple[Any, ...]) -> Any:
    """The core's answer to a call; exceptions are answers, too: whatever refuses a call has changed nothing."""
    try:
        return verb.call(core, arguments)
    except Exception as error:
        return error


def replay(recording: Recording, observer: Observer | None = None) -> Verdict:
    """Until the end or the first difference. Raises RecordingError where the recording is damaged."""
    core = Scheduler(recording.header.config)
    num_steps = num_calls = 0
    time_ns = recording.header.start_ns
    difference = None
    for call in recording.calls():
        num_calls += 1
        time_ns = call.time_ns
        answer = perform(core, call.verb, call.arguments)
        recorded, replayed = call.outcome, _comparable(call, answer)
        if replayed != recorded:
            difference = Difference(
                step_id=_step_id(recorded, replayed, num_steps),
                call_number=num_calls,
                seconds=(time_ns - recording.header.start_ns) / 1e9,
                recorded=recorded,
                replayed=replayed or "",
            )
            break
        num_steps += isinstance(recorded, PlanImage)
        if observer is not None:
            observer(core, time_ns, call.verb, call.arguments, answer)
    seconds = (time_ns - recording.header.start_ns) / 1e9
    return Verdict(num_steps=num_steps, num_calls=num_calls, seconds=seconds, difference=difference)


def _comparable(call: Call, answer: Any) -> Outcome | None:
    """What must equal the recorded outcome: of `schedule` the answer, of others that they do not break the core."""
    if call.verb is SCHEDULE:
        return outcome_of(answer)
    broken = isinstance(answer, Exception) and not isinstance(answer, SchedulerError)
    return f"{call.verb.name} raises {describe_exception(answer)}" if broken else None


def _step_id(recorded: Outcome | None, replayed: Outcome | None, num_steps: int) -> int:
    for outcome in (recorded, replayed):
        if isinstance(outcome, PlanImage):
            return outcome.step_id
    return num_steps + 1
