"""Summaries of steps for whoever watches, without ever waiting for one who reads too slowly.

The engine announces each plan and each result; a summary goes out when both are known. Every watcher has a bounded
buffer of its own: when it is full its oldest summary goes, and the next one that the watcher reads says how many did.
While nobody watches, a step costs two comparisons.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from scheduler.core.plan import StepPlan
from scheduler.core.result import StepResult
from scheduler.core.scheduler import Scheduler

_BUFFERED_STEPS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """One step; queues, blocks and preemptions as of its plan. The times are 0 until its result is back.

    worker: its address; step ids are its own. preemptions: since its plan before.
    """

    worker: str
    step_id: int
    planned_ns: int
    rows: int
    tokens: int
    admissions: int
    released_rows: int
    preemptions: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    copied_blocks: int
    num_running: int
    num_waiting: int
    num_swapped: int
    free_blocks: int
    cached_blocks: int
    sampled_tokens: int = 0
    execute_ns: int = 0
    turnaround_ns: int = 0


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """A summary, and how many before it this watcher lost."""

    summary: StepSummary
    num_skipped: int


class StepWatch:
    """One watcher's end: an async iterator that ends when the feed is closed."""

    def __init__(self, capacity: int) -> None:
        self._buffer: deque[StepSummary] = deque()
        self._capacity = capacity
        self._num_skipped = 0
        self._closed = False
        self._news = asyncio.Event()

    def push(self, summary: StepSummary) -> None:
        """Never waits: when the buffer is full the oldest summary goes."""
        if len(self._buffer) == self._capacity:
            self._buffer.popleft()
            self._num_skipped += 1
        self._buffer.append(summary)
        self._news.set()

    def close(self) -> None:
        """Ends the iteration after what is buffered."""
        self._closed = True
        self._news.set()

    def __aiter__(self) -> StepWatch:
        return self

    async def __anext__(self) -> WatchedStep:
        while not self._buffer:
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        skipped, self._num_skipped = self._num_skipped, 0
        return WatchedStep(self._buffer.popleft(), skipped)


class StepFeed:
    """From the engine to the watchers; all on one event loop. capacity: summaries that a watcher's buffer holds."""

    def __init__(self, *, capacity: int = _BUFFERED_STEPS, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self._capacity = capacity
        self._watches: dict[int, StepWatch] = {}
        self._num_watches = 0
        self._closed = False

    @property
    def num_watchers(self) -> int:
        """Watches that are open."""
        return len(self._watches)

    def tap(self, core: Scheduler, worker: str = "") -> StepTap:
        """Where the steps of one worker come in."""
        return StepTap(self, core, worker)

    @contextmanager
    def watch(self) -> Iterator[StepWatch]:
        """Watches from the next plan on, until the block is left."""
        self._num_watches += 1
        number, watch = self._num_watches, StepWatch(self._capacity)
        self._watches[number] = watch
        if self._closed:
            watch.close()
        try:
            yield watch
        finally:
            del self._watches[number]

    def close(self) -> None:
        """Ends all watches, those that begin later too: a server that stops does not wait for them."""
        self._closed = True
        for watch in self._watches.values():
            watch.close()

    def push(self, summary: StepSummary) -> None:
        """Hands a whole summary to all watchers."""
        for watch in self._watches.values():
            watch.push(summary)


class StepTap:
    """The steps of one worker, on their way into the feed."""

    def __init__(self, feed: StepFeed, core: Scheduler, worker: str) -> None:
        self._feed = feed
        self._core = core
        self._worker = worker
        self._planned: deque[StepSummary] = deque()
        self._num_preemptions = core.counters.preemptions

    def planned(self, plan: StepPlan) -> None:
        """A plan was made just now."""
        core, pool = self._core, self._core.blocks.pool
        preemptions = core.counters.preemptions
        if not self._feed.num_watchers:
            self._num_preemptions = preemptions
            self._planned.clear()
            return
        self._planned.append(
            StepSummary(
                worker=self._worker,
                step_id=plan.step_id,
                planned_ns=self._feed.clock_ns(),
                rows=len(plan.rows),
                tokens=sum(plan.num_tokens),
                admissions=len(plan.admissions),
                released_rows=len(plan.released_rows),
                preemptions=preemptions - self._num_preemptions,
                swapped_out_blocks=len(plan.swap_out),
                swapped_in_blocks=len(plan.swap_in),
                copied_blocks=len(plan.copy_on_write),
                num_running=core.num_running,
                num_waiting=core.num_waiting,
                num_swapped=core.num_swapped,
                free_blocks=pool.num_free,
                cached_blocks=pool.num_cached,
            )
        )
        self._num_preemptions = preemptions

    def settled(self, result: StepResult) -> None:
        """Its result was taken; plans before it were lost with their worker."""
        if not self._feed.num_watchers:
            return
        while self._planned and self._planned[0].step_id < result.step_id:
            self._planned.popleft()
        if not self._planned or self._planned[0].step_id != result.step_id:
            return  # planned before anybody watched
        planned = self._planned.popleft()
        self._feed.push(
            replace(
                planned,
                sampled_tokens=len(result.tokens),
                execute_ns=result.execute_ns,
                turnaround_ns=self._feed.clock_ns() - planned.planned_ns,
            )
        )
