"""How far plans go ahead of their results, and which of them travel together.

Two messages are on their way to a worker, so that it begins the second when it has answered the first. As a rule a
message is one plan. While all that is to be done is to decode, in short steps, it is two: both processes then wake up
for every other step only, which on a CPU that also computes costs more than the work they do (their code and data are
no longer in its caches). Tokens come in pairs then. What arrives waits for the two messages ahead of it, so these must
be short; and what ends early, at a stop token, has wasted up to three tokens instead of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from scheduler.core.plan import Idle, StepPlan, Waiting
from scheduler.core.result import StepResult
from scheduler.core.scheduler import Scheduler

_MAX_MESSAGES: Final = 2
_MAX_MESSAGE_NS: Final = 30_000_000


class Pipeline:
    """The messages in flight of one core's session. They have `max_plans_in_flight` plans at most."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self._messages: deque[deque[StepPlan]] = deque()  # the plans of each that have no result
        self._step_ns = _MAX_MESSAGE_NS

    @property
    def oldest(self) -> tuple[StepPlan, ...]:
        """The plans of the oldest message that have no result; none if no plan is in flight."""
        return tuple(self._messages[0]) if self._messages else ()

    def next_message(self, schedule: Callable[[], StepPlan | Waiting | Idle]) -> tuple[StepPlan, ...]:
        """The plans to send now; none if a result must come first or there is nothing to plan. schedule: the core's."""
        limit = self._core.config.max_plans_in_flight
        plans: list[StepPlan] = []
        if len(self._messages) < min(_MAX_MESSAGES, limit):
            while isinstance(plan := schedule(), StepPlan):
                plans.append(plan)
                if len(plans) == max(1, limit // _MAX_MESSAGES) or not self._may_follow(plan, len(plans)):
                    break
        if plans:
            self._messages.append(deque(plans))
        return tuple(plans)

    def settle(self, result: StepResult) -> tuple[StepPlan, bool]:
        """The oldest plan, whose result this is, and whether its message is answered with it."""
        self._step_ns = result.execute_ns
        plan = self._messages[0].popleft()
        answered = not self._messages[0]
        if answered:
            self._messages.popleft()
        return plan, answered

    def clear(self) -> None:
        """No result comes any more."""
        self._messages.clear()

    def _may_follow(self, plan: StepPlan, num_plans: int) -> bool:
        """Whether the result of the last of so many plans may wait for that of one more."""
        short = (num_plans + 1) * self._step_ns <= _MAX_MESSAGE_NS
        return short and self._core.only_decodes and not plan.admissions and max(plan.num_tokens) == 1
