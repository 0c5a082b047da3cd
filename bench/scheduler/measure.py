"""The loop that drives a contender and times its verbs. Every contender runs this same code, in its own interpreter.

Timed are the contender's own `add`, `schedule` and `update`. What stands in for the rest of an engine is not: making
its request objects, the absent model's output, and reading the ends from an update. Standard library only.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from bench.scheduler.workload import MIXED_OUTPUT, Case, Request, waiting

WINDOW = 16
"""Steps per figure: in any 16 each sequence needs exactly one new block."""
WINDOWS = 8


class Contender(Protocol):
    """A scheduler behind the verbs that all have in common. Each is a thin call, so that it adds the same to all."""

    def prepare(self, request: Request) -> Any:
        """What a front end would hand over. Not timed."""

    def add(self, prepared: Any) -> None:
        """Queues a request."""

    def schedule(self) -> Any | None:
        """Plans a step; None if nothing can be planned now."""

    def size(self, plan: Any) -> tuple[int, int]:
        """Rows and tokens of a plan. Not timed."""

    def answer(self, plan: Any) -> Any:
        """The model's output for a plan, as the engine would pass it. Not timed."""

    def update(self, plan: Any, result: Any) -> Any:
        """Takes the output of the oldest plan in flight."""

    def num_ended(self, update: Any) -> int:
        """Requests that ended with an update. Not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Means over the steps of a window, in microseconds per step: CPU time of the process by verb, and wall time.

    tokens: computed per step, a check that contenders did the same.
    """

    add_us: float
    schedule_us: float
    update_us: float
    wall_us: float
    tokens: float


class _Stopwatch:
    """CPU time by verb and wall time of all, since the last `window`."""

    def __init__(self) -> None:
        self.cpu_ns = {"add": 0, "schedule": 0, "update": 0}
        self.wall_ns = 0
        self.tokens = 0

    def time(self, verb: str, function: Callable[..., Any], *arguments: Any) -> Any:
        cpu = time.process_time_ns()
        wall = time.perf_counter_ns()
        value = function(*arguments)
        self.wall_ns += time.perf_counter_ns() - wall
        self.cpu_ns[verb] += time.process_time_ns() - cpu
        return value

    def window(self) -> Window:
        per_step = {verb: total / WINDOW / 1e3 for verb, total in self.cpu_ns.items()}
        figures = Window(
            add_us=per_step["add"],
            schedule_us=per_step["schedule"],
            update_us=per_step["update"],
            wall_us=self.wall_ns / WINDOW / 1e3,
            tokens=self.tokens / WINDOW,
        )
        self.cpu_ns = dict.fromkeys(self.cpu_ns, 0)
        self.wall_ns = self.tokens = 0
        return figures


def run(contender: Contender, case: Case) -> list[Window]:
    """Fills up, waits until the load is steady, and measures."""
    arrivals = case.requests()
    in_flight: deque[Any] = deque()
    watch = _Stopwatch()
    windows: list[Window] = []
    to_add, steps, first = case.running, 0, _warm_up(case)
    while len(windows) < WINDOWS:
        for _ in range(to_add):
            watch.time("add", contender.add, contender.prepare(next(arrivals)))
        while (
            len(in_flight) < case.plans_in_flight and (plan := watch.time("schedule", contender.schedule)) is not None
        ):
            in_flight.append(plan)
            rows, tokens = contender.size(plan)
            watch.tokens += tokens
            if case.load == "decode" and steps > first and not rows == tokens == case.running:
                raise RuntimeError(f"{case}: step {steps} has {rows} rows and {tokens} tokens")
        oldest = in_flight.popleft()
        ended = contender.num_ended(watch.time("update", contender.update, oldest, contender.answer(oldest)))
        to_add = ended if case.load == "mixed" else 0
        steps += 1
        if steps >= first and (steps - first) % WINDOW == 0:
            figures = watch.window()
            if steps > first:
                windows.append(figures)
    return windows


def waiting_bytes(contender: Contender, count: int, num_prompt: int) -> float:
    """Memory that a waiting request takes, in bytes. The int objects of its prompt are the caller's and not counted."""
    requests = waiting(count, num_prompt)
    gc.collect()
    tracemalloc.start()
    for request in requests:
        contender.add(contender.prepare(request))
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / count


def serve(make: Callable[[Case], Contender], versions: dict[str, str]) -> None:
    """Answers one JSON line per command on standard input, until it ends; `versions` first.

    What anyone else prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(versions), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        case = Case(**command["case"])
        contender = make(case)
        gc.collect()
        gc.freeze()  # as both engines do once they are up
        answer: Any
        if "waiting" in command:
            answer = waiting_bytes(contender, **command["waiting"])
        else:
            answer = [asdict(window) for window in run(contender, case)]
        print(json.dumps(answer), file=answers, flush=True)
        del contender
        gc.unfreeze()
        gc.collect()


def _warm_up(case: Case) -> int:
    """Steps before the first window: until all prompts are through, and in the mixed load until the first sequences
    are gone and blocks are evicted."""
    return 4 * WINDOW if case.load == "decode" else 3 * MIXED_OUTPUT
