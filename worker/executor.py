"""The one thread that does tensor work, so that the event loop stays free while a step runs.

Jobs run one at a time in the order in which they were submitted. Loading runs here as well: a native thread pool
belongs to the thread that started it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Executor:
    """A thread and its queue. A job must not raise: without its thread a worker would hang, so the process ends."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a process that is told to stop must not wait for a model that is still loading.
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Queues a job; returns at once."""
        self._jobs.put(job)

    async def call(self, function: Callable[[], T]) -> T:
        """Runs a function behind the jobs queued so far, and gives what it returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                result = function()
            except BaseException as error:  # whatever it is, it belongs to the caller
                post(loop, _settle, future, lambda raised=error: future.set_exception(raised))
            else:
                post(loop, _settle, future, lambda: future.set_result(result))

        self.submit(job)
        return await future

    async def stop(self, grace_seconds: float) -> bool:
        """Lets the queued jobs end and the thread with them. False if it still runs after the grace."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, grace_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except BaseException:
            try:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)


def post(loop: asyncio.AbstractEventLoop, callback: Callable[[*Arguments], object], *arguments: *Arguments) -> None:
    """Has the loop call this soon. From any thread; nothing happens if the loop is closed: a job may outlive it."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _settle(future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    if not future.done():  # the caller may have been cancelled meanwhile
        settle()
