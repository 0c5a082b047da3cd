"""What a step may hold, and what the core keeps of sequences that have ended."""

from __future__ import annotations

import pytest

from scheduler.core.config import CoreConfig
from scheduler.core.errors import NeverFitsError
from scheduler.core.plan import IDLE, WAITING, StepPlan
from scheduler.core.result import EndReason, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec


def spec(sequence_id: int, length: int, max_tokens: int = 4, deadline_ns: int | None = None) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=sequence_id, prompt=(sequence_id,) * length, max_tokens=max_tokens, deadline_ns=deadline_ns
    )


def planned(core: Scheduler) -> StepPlan:
    plan = core.schedule()
    assert isinstance(plan, StepPlan)
    return plan


def answer(core: Scheduler, plan: StepPlan) -> None:
    core.update(
        StepResult(
            epoch=core.epoch, step_id=plan.step_id, num_sampled=plan.max_samples, tokens=(7,) * sum(plan.max_samples)
        )
    )


def test_an_empty_core_is_idle_and_a_full_pipeline_waits() -> None:
    core = Scheduler(CoreConfig(num_blocks=4))
    assert core.schedule() is IDLE
    core.add(spec(1, 3))
    planned(core)
    planned(core)
    assert core.schedule() is WAITING


def test_the_watermark_holds_back_admissions_while_others_run_and_never_the_only_one() -> None:
    core = Scheduler(CoreConfig(num_blocks=4, block_size=4, watermark=2))
    core.add(spec(1, 9))
    core.add(spec(2, 1))
    assert [admission.sequence_id for admission in planned(core).admissions] == [1]
    core.finish(1, EndReason.ABORT)
    assert [admission.sequence_id for admission in planned(core).admissions] == [2]


def test_decodes_go_on_beside_a_prompt_that_takes_the_rest_of_the_budget() -> None:
    core = Scheduler(CoreConfig(num_blocks=16, block_size=4, max_num_seqs=4, max_num_batched_tokens=4))
    core.add(spec(1, 30))
    answer(core, planned(core))
    for sequence_id in (2, 3):
        core.add(SequenceSpec(sequence_id=sequence_id, prompt=(9,), max_tokens=20, priority=1))
    seen = set()
    for _ in range(10):
        plan = planned(core)
        assert sum(plan.num_tokens) <= 4
        seen.add(plan.num_tokens)
        answer(core, plan)
    assert seen == {(4,), (2, 1, 1), (1, 1, 1)}


def test_a_smaller_pool_refuses_what_the_larger_one_would_have_taken() -> None:
    core = Scheduler(CoreConfig(num_blocks=8, block_size=4))
    core.requeue_all(2)
    with pytest.raises(NeverFitsError, match="needs 3 blocks, pool 2: 5 prompt tokens and 5 more, 4 per block"):
        core.add(spec(1, 5, max_tokens=5))
    core.add(spec(1, 5, max_tokens=4))


def test_deadlines_of_ended_sequences_do_not_pile_up() -> None:
    core = Scheduler(CoreConfig(num_blocks=4))
    for sequence_id in range(1_000):
        core.add(spec(sequence_id, 1, deadline_ns=10**18))
        core.finish(sequence_id, EndReason.ABORT)
    assert core.snapshot().num_deadlines < 100


def test_finishing_all_ends_running_and_waiting_sequences() -> None:
    core = Scheduler(CoreConfig(num_blocks=4, max_num_seqs=1))
    for sequence_id in (1, 2):
        core.add(spec(sequence_id, 3))
    planned(core)
    ends = core.finish_all(EndReason.WORKER_LOST)
    assert [(end.sequence_id, end.reason) for end in ends] == [
        (1, EndReason.WORKER_LOST),
        (2, EndReason.WORKER_LOST),
    ]
    assert core.snapshot().num_live == 0
    assert not any(core.snapshot().block_references)


def test_tokens_computed_again_in_chunks_are_booked_as_recomputed() -> None:
    core = Scheduler(CoreConfig(num_blocks=4, block_size=4, max_num_seqs=1, max_num_batched_tokens=4))
    core.add(spec(1, 9))
    for _ in range(3):
        answer(core, planned(core))
    core.requeue_all(4)
    for _ in range(3):
        answer(core, planned(core))
    counters = core.counters
    assert (counters.kept_tokens, counters.recomputed_tokens, counters.wasted_tokens) == (10, 9, 0)
