"""Long use leaves nothing behind, and every process decides alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.core.result import EndReason
from tests.scheduler.core.random_run import digest, random_run


def test_twenty_thousand_requests_with_random_cancels_leave_nothing_behind() -> None:
    lab = random_run(seed=1, num_requests=20_000)
    lab.check()
    lab.check_empty()
    assert len(lab.ends) == 20_000
    assert {end.reason for end in lab.ends.values()} == {
        EndReason.STOP,
        EndReason.LENGTH,
        EndReason.ABORT,
        EndReason.DEADLINE,
    }
    assert lab.core.counters.preemptions > 0
    assert lab.core.counters.prefix_cache_hits > 0
    core = lab.core.snapshot()
    assert core.num_indexed_blocks == core.num_cached_blocks, "a block is findable that nobody keeps"
    lab.core.expire(sys.maxsize)
    assert lab.core.snapshot().num_deadlines == 0


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_with_another_hash_seed_gives_the_same_plans(hash_seed: str) -> None:
    here = digest(random_run(seed=3, num_requests=300))
    there = subprocess.run(
        [sys.executable, "-m", "tests.scheduler.core.random_run", "3", "300"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[3],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert there.stdout.strip() == here


def test_a_recorded_run_replays_on_a_fresh_core() -> None:
    random_run(seed=4, num_requests=300).replay()
