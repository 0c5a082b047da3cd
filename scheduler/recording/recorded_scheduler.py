"""A core that writes down what it is told before it does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from scheduler.core.config import CoreConfig
from scheduler.core.errors import SchedulerError
from scheduler.core.plan import Idle, StepPlan, Waiting
from scheduler.core.result import End, EndReason, StepOutput, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.recording import verbs
from scheduler.recording.verbs import Verb
from scheduler.recording.writer import RecordingWriter

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


class RecordedScheduler(Scheduler):
    """Decides as `Scheduler` does. Verbs that the core itself calls within another one are no inputs: they follow.

    The caller owns the writer and closes it.
    """

    def __init__(self, config: CoreConfig, writer: RecordingWriter) -> None:
        super().__init__(config)
        self._writer = writer
        self._within_call = False

    def add(self, spec: SequenceSpec) -> None:
        return self._recorded(verbs.ADD, super().add, spec)

    def finish(self, sequence_id: int, reason: EndReason) -> End | None:
        return self._recorded(verbs.FINISH, super().finish, sequence_id, reason)

    def finish_all(self, reason: EndReason) -> tuple[End, ...]:
        return self._recorded(verbs.FINISH_ALL, super().finish_all, reason)

    def expire(self, now_ns: int) -> tuple[End, ...]:
        return self._recorded(verbs.EXPIRE, super().expire, now_ns)

    def update(self, result: StepResult) -> StepOutput:
        return self._recorded(verbs.UPDATE, super().update, result)

    def requeue_all(self, num_blocks: int) -> tuple[End, ...]:
        return self._recorded(verbs.REQUEUE_ALL, super().requeue_all, num_blocks)

    def schedule(self) -> StepPlan | Waiting | Idle:
        try:
            answer = super().schedule()
        except Exception as error:
            self._writer.schedule(error)
            raise
        self._writer.schedule(answer)
        return answer

    def _recorded(
        self,
        verb: Verb,
        call: Callable[_Arguments, _Answer],
        *arguments: _Arguments.args,
        **none: _Arguments.kwargs,
    ) -> _Answer:
        if self._within_call:
            return call(*arguments, **none)
        self._writer.call(verb, *arguments)
        self._within_call = True
        try:
            return call(*arguments, **none)
        except SchedulerError:
            raise
        except Exception:
            self._writer.flush()  # the call that broke the core is what one wants to replay
            raise
        finally:
            self._within_call = False
