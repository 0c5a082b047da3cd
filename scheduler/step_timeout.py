"""How long a step may take before its worker counts as hung.

A step's budget is a base plus a time per token that it computes; steps that were sent together are timed as one. It
runs from the moment at which the worker could have begun: when the plan was sent, or when the result of the plan before
it came. Loading and warming up come before a session and are not timed; the first step of a session still gets more,
because memory is touched and kernels are compiled for the first time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

FIRST_STEP_FACTOR: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeout:
    """base_s: seconds for any step. per_token_s: seconds more for each token that it computes."""

    base_s: float
    per_token_s: float

    def budget_ns(self, num_tokens: int) -> int:
        """Nanoseconds for a step of so many tokens."""
        return int(1e9 * (self.base_s + num_tokens * self.per_token_s))


class Watchdog:
    """Times the plans in flight of one session; made anew for each. Times are nanoseconds on one clock."""

    def __init__(self, timeout: StepTimeout) -> None:
        self._timeout = timeout
        self._budgets_ns: deque[int] = deque()
        self._began_ns = 0
        self._warm = False

    @property
    def deadline_ns(self) -> int | None:
        """When the oldest message in flight is overdue; None if there is none."""
        if not self._budgets_ns:
            return None
        return self._began_ns + self._budgets_ns[0] * (1 if self._warm else FIRST_STEP_FACTOR)

    def sent(self, num_tokens: int, now_ns: int) -> None:
        """A message of plans of so many tokens is on its way."""
        if not self._budgets_ns:
            self._began_ns = now_ns
        self._budgets_ns.append(self._timeout.budget_ns(num_tokens))

    def settled(self, now_ns: int) -> None:
        """The results of the oldest message came."""
        self._budgets_ns.popleft()
        self._began_ns = now_ns
        self._warm = True

    def pardon(self, ns: int) -> None:
        """This process itself stood still so long; results may have come meanwhile."""
        self._began_ns += ns
