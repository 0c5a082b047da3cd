"""Long use leaves nothing behind, and every process decides alike."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from scheduler.core.config import CoreConfig
from scheduler.core.forks import Group
from scheduler.core.live import LiveSequence
from scheduler.core.plan import IDLE, StepPlan
from scheduler.core.result import EndReason, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from tests.scheduler.core import toy_model
from tests.scheduler.core.random_run import MAX_N, digest, random_request, random_run

_SMALL = CoreConfig(
    num_blocks=96,
    block_size=4,
    max_num_seqs=32,
    max_num_batched_tokens=96,
    max_num_waiting=64,
    num_host_blocks=24,
    bytes_per_block=1000,
)


def test_many_requests_with_random_cancels_get_what_they_should_and_leave_nothing_behind() -> None:
    lab = random_run(seed=1, num_requests=5_000)
    lab.check()
    lab.check_empty()
    assert {end.reason for end in lab.ends.values()} == {
        EndReason.STOP,
        EndReason.LENGTH,
        EndReason.ABORT,
        EndReason.DEADLINE,
    }
    counters = lab.core.counters
    assert 0 < counters.preemptions_swap < counters.preemptions
    assert min(counters.prefix_cache_hits, counters.forks) > 0


def test_a_hundred_thousand_requests_leave_no_block_row_or_map_entry_behind() -> None:
    others = _num_objects()
    core = Scheduler(_SMALL)
    num_sequences = _serve(core, num_requests=100_000)
    assert core.counters.finished == num_sequences > 100_000
    assert 0 < core.counters.preemptions_swap < core.counters.preemptions
    assert core.counters.forks > 0
    core.expire(sys.maxsize)
    picture = core.snapshot()
    assert (picture.num_live, picture.waiting, picture.running, picture.swapped) == (0, (), (), ())
    assert (picture.plans_in_flight, picture.pinned_blocks, picture.num_deadlines) == ((), (), 0)
    assert not any(picture.block_references)
    assert picture.num_free_blocks + picture.num_cached_blocks == _SMALL.num_blocks
    assert picture.num_indexed_blocks == picture.num_cached_blocks, "a block is findable that nobody keeps"
    assert picture.num_free_host_blocks == _SMALL.num_host_blocks
    assert picture.free_rows == tuple(range(_SMALL.max_num_seqs))
    assert _num_objects() == others, "the core still holds on to what has ended"


def test_the_core_makes_no_cycles_that_only_the_garbage_collector_would_find() -> None:
    core = Scheduler(_SMALL)
    gc.collect()
    gc.disable()
    try:
        _serve(core, num_requests=2_000)
        assert core.counters.forks > 0
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_one_that_ends_long_before_max_tokens_is_not_kept_until_then() -> None:
    others = _num_objects()
    core = Scheduler(CoreConfig(num_blocks=1 << 16, max_num_waiting=1))
    for sequence_id in range(100):
        core.add(SequenceSpec(sequence_id=sequence_id, prompt=(1, 2, 3), max_tokens=1_000_000))
        for _ in range(3):
            plan = core.schedule()
            assert isinstance(plan, StepPlan)
            core.update(_answer(core, plan, random.Random(0)))
        core.finish(sequence_id, EndReason.ABORT)
    assert _num_objects() == others


def _num_objects() -> int:
    """Sequences and groups that somebody still refers to, in whatever map or list."""
    gc.collect()
    return sum(isinstance(thing, LiveSequence | Group) for thing in gc.get_objects())


def _serve(core: Scheduler, *, num_requests: int) -> int:
    """Serves random requests, some cancelled, with random tokens for results; returns the number of sequences."""
    dice = random.Random(5)
    heads = [tuple(dice.choices(range(1, toy_model.VOCABULARY), k=16)) for _ in range(8)]
    plans: deque[StepPlan] = deque()
    added = num_sequences = now_ns = 0
    while True:
        for _ in range(min(dice.randint(0, 8), num_requests - added)):
            request = random_request(added, dice, heads, now_ns)
            if core.num_waiting + len(request) <= _SMALL.max_num_waiting:
                core.add_group(request)
                added += 1
                num_sequences += len(request)
        if dice.random() < 0.5:
            core.finish(dice.randrange(max(0, added - 60) * MAX_N, added * MAX_N + 1), EndReason.ABORT)
        now_ns += 1
        core.expire(now_ns)
        plan = core.schedule()
        if isinstance(plan, StepPlan):
            plans.append(plan)
        if plans and (not isinstance(plan, StepPlan) or dice.random() < 0.5):
            core.update(_answer(core, plans.popleft(), dice))
        elif plan is IDLE and added == num_requests:
            return num_sequences


def _answer(core: Scheduler, plan: StepPlan, dice: random.Random) -> StepResult:
    tokens = tuple(dice.choices(range(toy_model.VOCABULARY), k=sum(plan.max_samples)))
    return StepResult(epoch=core.epoch, step_id=plan.step_id, num_sampled=plan.max_samples, tokens=tokens)


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
