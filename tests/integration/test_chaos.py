"""Workers that are killed and stopped at random while requests run: every token is what it would have been.

Every few seconds one of three workers gets SIGKILL, and is started again, or SIGSTOP, and goes on or is killed a
little later. The prompts and lengths are mixed, half of the requests draw with a seed, and the workers compute exactly,
so each answer is compared id by id with that of an undisturbed run.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from clients import Completion
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import ServiceProcess

NUM_WORKERS = 3
POOL = ["--num-gpu-blocks-override", "512", "--max-num-seqs", "16"]
SCHEDULER = [
    "--worker-grace=120",
    "--step-timeout=1",
    "--step-timeout-per-token=0.01",
    "--max-num-seqs=16",
    "--max-num-batched-tokens=256",
]
CALL_CAP_S = 280.0


@dataclass(frozen=True, slots=True)
class Call:
    """A request of the run."""

    prompt: str
    max_tokens: int
    seed: int | None

    def on(self, server: Cluster) -> Completion:
        temperature = 0.0 if self.seed is None else 1.0
        return collect(
            server.generate(
                self.prompt,
                max_tokens=self.max_tokens,
                ignore_eos=True,
                temperature=temperature,
                seed=self.seed,
                timeout=CALL_CAP_S,
            )
        )


def calls(count: int, max_tokens: int) -> list[Call]:
    """Mixed lengths; a third begins with the same words."""
    dice = random.Random(0)
    made = []
    for number in range(count):
        head = "The same beginning, again and again: " if number % 3 == 0 else f"{number}: "
        prompt = head + "".join(dice.choices("abcdefgh ", k=dice.choice((5, 40, 300))))
        made.append(Call(prompt, dice.randint(max_tokens // 8, max_tokens), number if number % 2 else None))
    return made


class Chaos:
    """Harms a random worker now and then, from a thread of its own, until told to stop; then all are well again."""

    def __init__(self, workers: tuple[ServiceProcess, ...], every_s: float) -> None:
        self._workers = workers
        self._every_s = every_s
        self._dice = random.Random(1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.kills = self.stops = 0

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        for worker in self._workers:
            if not worker.running():
                worker.start()

    def _run(self) -> None:
        while not self._over.wait(self._every_s * self._dice.uniform(0.5, 1.5)):
            worker = self._dice.choice(self._workers)
            if self._dice.random() < 0.5:
                self.stops += 1
                worker.pause()
                self._over.wait(self._every_s)
                if self._dice.random() < 0.5:
                    worker.resume()
                    continue
            self.kills += 1
            worker.kill()
            worker.start()


@pytest.fixture
def trio(uniform_model: Path, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(
        uniform_model, tmp_path, worker_args=POOL, scheduler_args=SCHEDULER, num_workers=NUM_WORKERS
    ) as server:
        yield server


@pytest.mark.parametrize(
    ("count", "max_tokens", "every_s"),
    [
        pytest.param(40, 500, 0.7, id="short"),
        pytest.param(200, 1200, 3.0, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_chaos_changes_no_token(trio: Cluster, count: int, max_tokens: int, every_s: float) -> None:
    requests = calls(count, max_tokens)
    with ThreadPoolExecutor(count) as threads:
        undisturbed = list(threads.map(lambda call: call.on(trio), requests))
        before = trio.wait_empty()
        with Chaos(trio.workers, every_s) as chaos:
            disturbed = list(threads.map(lambda call: call.on(trio), requests))
    for call, calm, wild in zip(requests, undisturbed, disturbed, strict=True):
        assert len(wild.token_ids) == call.max_tokens
        assert wild.token_ids == calm.token_ids, "an id was changed, doubled or lost"
        assert wild.usage.completion_tokens == call.max_tokens
    trio.wait_connected()
    after = trio.wait_empty()
    assert chaos.kills + chaos.stops > 0
    print(f"{chaos.kills} kills, {chaos.stops} stops, {[(w.restarts, w.hangs) for w in after.workers]}")
    counters = after.counters
    assert counters.computed_tokens == counters.kept_tokens + counters.recomputed_tokens + counters.wasted_tokens
    generated = counters.generated_tokens - before.counters.generated_tokens
    assert generated == sum(call.max_tokens for call in requests)
    assert counters.finished - before.counters.finished == count
    for worker in after.workers:
        assert worker.blocks.free + worker.blocks.cached == worker.blocks.total
        assert (worker.queues.running, worker.queues.waiting, worker.suspects) == (0, 0, 0)
