"""A timer that is set again and again, nearly always to later than before, and seldom rings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

# Event loops count in milliseconds; a timer must not fire again and again within the one in which it is due.
_RESOLUTION_S: Final = 0.001


class Alarm:
    """Calls `ring` with how late it is, in nanoseconds, once the time that was set last has come.

    Times are nanoseconds on the monotonic clock. To be used on one event loop. Setting it to later costs next to
    nothing: the loop's timer stays as it is, and is begun anew when it fires too early.
    """

    def __init__(self, ring: Callable[[int], None]) -> None:
        self._ring = ring
        self._due_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def set(self, due_ns: int | None) -> None:
        """When to ring, instead of what was set before; None: not at all."""
        self._due_ns = due_ns
        if due_ns is not None and (self._timer is None or due_ns < self._timer_ns):
            self._begin(due_ns, time.monotonic_ns())

    def _begin(self, due_ns: int, now_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(due_ns - now_ns, 0) / 1e9 + _RESOLUTION_S
        self._timer, self._timer_ns = asyncio.get_running_loop().call_later(delay_s, self._fire), due_ns

    def _fire(self) -> None:
        self._timer = None
        due_ns, now_ns = self._due_ns, time.monotonic_ns()
        if due_ns is None:
            return
        if due_ns > now_ns:
            self._begin(due_ns, now_ns)
        else:
            self._due_ns = None
            self._ring(now_ns - due_ns)
