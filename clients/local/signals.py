"""SIGINT and SIGTERM: the first asks for a drain, the second ends everything at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StopSignals:
    """Counts the signals of this process. To be made inside a running event loop, in the main thread."""

    def __init__(self, on_second: Callable[[], None]) -> None:
        self.first = asyncio.Event()
        self.killed_by = 0  # number of the signal that ended everything, 0 for none
        self._on_second = on_second
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: int) -> None:
        if not self.first.is_set():
            self.first.set()
        elif not self.killed_by:
            self.killed_by = number
            self._on_second()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None if the first signal came before it, which cancels the work."""
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self.first.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return None
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)
