"""A core that writes down what it is told before it does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from scheduler.core.config import CoreConfig
from scheduler.core.drop_prefix import PrefixSelection
from scheduler.core.errors import SchedulerError
from scheduler.core.handover import Handover
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

    def add_group(self, specs: tuple[SequenceSpec, ...]) -> None:
        return self._recorded(verbs.ADD_GROUP, super().add_group, specs)

    def withdraw(self, sequence_id: int) -> tuple[Handover, ...]:
        return self._recorded(verbs.WITHDRAW, super().withdraw, sequence_id)

    def adopt(self, handovers: tuple[Handover, ...]) -> None:
        return self._recorded(verbs.ADOPT, super().adopt, handovers)

    def finish(self, sequence_id: int, reason: EndReason, num_output_tokens: int | None = None) -> End | None:
        if num_output_tokens is None:
            return self._recorded(verbs.FINISH, super().finish, sequence_id, reason)
        return self._recorded(verbs.FINISH_AT, super().finish, sequence_id, reason, num_output_tokens)

    def finish_all(self, reason: EndReason) -> tuple[End, ...]:
        return self._recorded(verbs.FINISH_ALL, super().finish_all, reason)

    def expire(self, now_ns: int) -> tuple[End, ...]:
        return self._recorded(verbs.EXPIRE, super().expire, now_ns)

    def update(self, result: StepResult) -> StepOutput:
        return self._recorded(verbs.UPDATE, super().update, result)

    def requeue_all(self, num_blocks: int, num_host_blocks: int = 0) -> tuple[End, ...]:
        return self._recorded(verbs.REQUEUE_ALL, super().requeue_all, num_blocks, num_host_blocks)

    def set_rates(self, *, prefill_tokens_per_s: int, copy_bytes_per_s: int) -> None:
        return self._recorded(
            verbs.SET_RATES,
            super().set_rates,
            prefill_tokens_per_s=prefill_tokens_per_s,
            copy_bytes_per_s=copy_bytes_per_s,
        )

    def drop_prefix(self, selection: PrefixSelection) -> tuple[int, int]:
        return self._recorded(verbs.DROP_PREFIX, super().drop_prefix, selection)

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
        **keywords: _Arguments.kwargs,
    ) -> _Answer:
        if self._within_call:
            return call(*arguments, **keywords)
        self._writer.call(verb, *arguments, *(keywords[name] for name in verb.keywords))
        self._within_call = True
        try:
            return call(*arguments, **keywords)
        except SchedulerError:
            raise
        except Exception:
            self._writer.flush()  # the call that broke the core is what one wants to replay
            raise
        finally:
            self._within_call = False
