"""What watchers of steps get, fast or slow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from scheduler.core.config import CoreConfig
from scheduler.core.plan import StepPlan
from scheduler.core.result import StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.step_feed import StepFeed, StepWatch


class Bench:
    """A core with one long request, and its feed."""

    def __init__(self, capacity: int) -> None:
        self.core = Scheduler(CoreConfig(num_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=8))
        self.core.add(SequenceSpec(sequence_id=1, prompt=tuple(range(20)), max_tokens=200))
        self.feed = StepFeed(capacity=capacity)
        self.tap = self.feed.tap(self.core)

    def plan(self) -> StepPlan:
        plan = self.core.schedule()
        assert isinstance(plan, StepPlan)
        self.tap.planned(plan)
        return plan

    def answer(self, plan: StepPlan) -> None:
        result = StepResult(
            epoch=self.core.epoch,
            step_id=plan.step_id,
            num_sampled=plan.max_samples,
            tokens=(7,) * sum(plan.max_samples),
        )
        self.core.update(result)
        self.tap.settled(result)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.answer(self.plan())


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


async def read(watch: StepWatch, count: int) -> list[tuple[int, int]]:
    """(step id, skipped) of the next summaries."""
    got = [await anext(watch) for _ in range(count)]
    return [(step.summary.step_id, step.num_skipped) for step in got]


def test_a_slow_watcher_loses_the_oldest_and_is_told_how_many() -> None:
    async def test() -> None:
        bench = Bench(capacity=3)
        with bench.feed.watch() as slow, bench.feed.watch() as quick:
            bench.steps(2)
            assert await read(quick, 2) == [(1, 0), (2, 0)]
            bench.steps(3)
            assert await read(quick, 3) == [(3, 0), (4, 0), (5, 0)]
            assert await read(slow, 3) == [(3, 2), (4, 0), (5, 0)]
            bench.steps(5)
            assert await read(slow, 3) == [(8, 2), (9, 0), (10, 0)]

    run(test)


def test_a_watcher_waits_for_the_next_step() -> None:
    async def test() -> None:
        bench = Bench(capacity=3)
        with bench.feed.watch() as watch:
            waiting = asyncio.ensure_future(read(watch, 1))
            await asyncio.sleep(0)
            assert not waiting.done()
            bench.steps(1)
            assert await waiting == [(1, 0)]

    run(test)


def test_a_summary_needs_a_plan_that_was_watched() -> None:
    async def test() -> None:
        bench = Bench(capacity=3)
        unwatched = bench.plan()
        with bench.feed.watch() as watch:
            watched = bench.plan()
            bench.answer(unwatched)
            bench.answer(watched)
            assert await read(watch, 1) == [(2, 0)]

    run(test)


def test_plans_that_a_worker_took_with_it_are_left_out() -> None:
    async def test() -> None:
        bench = Bench(capacity=3)
        with bench.feed.watch() as watch:
            bench.plan()
            bench.core.requeue_all(64)
            bench.steps(1)
            assert await read(watch, 1) == [(2, 0)]

    run(test)


def test_a_closed_feed_ends_after_what_is_buffered() -> None:
    async def test() -> None:
        bench = Bench(capacity=3)
        with bench.feed.watch() as watch:
            bench.steps(1)
            bench.feed.close()
            assert [step.summary.step_id async for step in watch] == [1]
        with bench.feed.watch() as late:
            assert [step async for step in late] == []

    run(test)


def test_preemptions_are_counted_since_the_plan_before() -> None:
    async def test() -> None:
        bench = Bench(capacity=300)
        small = CoreConfig(num_blocks=6, block_size=4, max_num_seqs=4, max_num_batched_tokens=32)
        bench.core = Scheduler(small)
        bench.tap = bench.feed.tap(bench.core)
        for number in (1, 2):
            bench.core.add(SequenceSpec(sequence_id=number, prompt=(number,) * 8, max_tokens=12))
        with bench.feed.watch() as watch:
            bench.steps(15)
            summaries = [(await anext(watch)).summary for _ in range(15)]
        assert bench.core.counters.preemptions >= 1
        assert sum(summary.preemptions for summary in summaries) == bench.core.counters.preemptions

    run(test)
