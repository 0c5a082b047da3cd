"""What a step may hold, and what the core keeps of sequences that have ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.config import CoreConfig
from scheduler.core.errors import (
    DuplicateSequenceError,
    InvalidSequenceError,
    NeverFitsError,
    QueueFullError,
    SchedulerError,
)
from scheduler.core.plan import IDLE, WAITING, StepPlan
from scheduler.core.result import End, EndReason, StepOutput, StepResult
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


def answer(core: Scheduler, plan: StepPlan) -> StepOutput:
    return core.update(
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


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    core = Scheduler(CoreConfig(num_blocks=12, block_size=16, max_num_seqs=4))
    with pytest.raises(NeverFitsError, match="needs 13 blocks, pool 12: 100 prompt tokens and 94 more") as caught:
        core.add(spec(1, 100, max_tokens=94))
    assert (caught.value.field, caught.value.value, caught.value.limit) == ("max_tokens", 94, 12)
    core.add(spec(1, 100, max_tokens=93))


def test_a_sequence_that_grows_to_the_whole_pool_ends_by_length() -> None:
    core = Scheduler(CoreConfig(num_blocks=3, block_size=4, max_num_seqs=2, max_num_batched_tokens=16))
    core.add(spec(1, 5, max_tokens=8))
    core.add(spec(2, 5, max_tokens=8))
    ends: list[End] = []
    for _ in range(40):
        plan = core.schedule()
        if not isinstance(plan, StepPlan):
            break
        ends += answer(core, plan).ends
    assert [(end.sequence_id, end.reason, end.num_output_tokens) for end in ends] == [
        (1, EndReason.LENGTH, 8),
        (2, EndReason.LENGTH, 8),
    ]


def group(count: int, **changes: Any) -> tuple[SequenceSpec, ...]:
    return tuple(replace(spec(1, 5), sequence_id=index + 1, seed=index, **changes) for index in range(count))


def different(**changes: Any) -> tuple[SequenceSpec, ...]:
    first, second = group(2)
    return first, replace(second, **changes)


@pytest.mark.parametrize(
    ("specs", "kind", "message", "field"),
    [
        ((), InvalidSequenceError, "a group has at least one sequence", "n"),
        (group(5), InvalidSequenceError, "n is 5, must be at most 4 (max_num_seqs): all are admitted together", "n"),
        (different(prompt=(2,)), InvalidSequenceError, "differ in prompt, salt or priority", "prompt"),
        (different(cache_salt="x"), InvalidSequenceError, "differ in prompt, salt or priority", "prompt"),
        (different(priority=1), InvalidSequenceError, "differ in prompt, salt or priority", "prompt"),
        (different(max_tokens=0), InvalidSequenceError, "max_tokens must be at least 1, is 0", "max_tokens"),
        (different(sequence_id=1), DuplicateSequenceError, "two sequences of a group have one id", "sequence_id"),
        (different(sequence_id=7), DuplicateSequenceError, "sequence 7 is live", "sequence_id"),
        (different(max_tokens=13), NeverFitsError, "needs 5 blocks, pool 4: 5 prompt tokens and 13 more", "max_tokens"),
        (
            group(4),
            NeverFitsError,
            "needs 5 blocks, pool 4: 5 prompt tokens and a block for each of 3 more sequences",
            "n",
        ),
        (group(3), QueueFullError, "2 sequences wait, limit 4", "request"),
    ],
)
def test_a_group_that_is_impossible_changes_nothing(
    specs: tuple[SequenceSpec, ...], kind: type[SchedulerError], message: str, field: str
) -> None:
    core = Scheduler(CoreConfig(num_blocks=4, block_size=4, max_num_seqs=4, max_num_waiting=4))
    core.add(spec(7, 1))
    core.add(spec(8, 1))
    before = core.snapshot()
    with pytest.raises(kind) as caught:
        core.add_group(specs)
    assert message in str(caught.value)
    assert caught.value.field == field
    assert core.snapshot() == before


def test_prompt_tokens_that_wait_have_a_limit_and_one_long_prompt_may_wait_alone() -> None:
    core = Scheduler(CoreConfig(num_blocks=64, block_size=4, max_num_seqs=4, max_num_waiting_tokens=10))
    core.add(spec(1, 12))
    with pytest.raises(QueueFullError, match="12 prompt tokens wait, 1 more are over the limit 10"):
        core.add(spec(2, 1))
    planned(core)
    assert core.num_waiting_tokens == 0
    core.add(spec(2, 6))
    with pytest.raises(QueueFullError, match="6 prompt tokens wait, 6 more are over the limit 10"):
        core.add_group((spec(3, 3), replace(spec(3, 3), sequence_id=4)))
    core.add(spec(5, 4))
    assert core.num_waiting_tokens == 10
    core.finish(2, EndReason.ABORT)
    core.add(spec(6, 6))
    assert core.num_waiting_tokens == 10


def test_a_group_takes_all_rows_or_none() -> None:
    core = Scheduler(CoreConfig(num_blocks=16, block_size=4, max_num_seqs=4))
    for sequence_id in (8, 9):
        core.add(spec(sequence_id, 1, max_tokens=2))
    answer(core, planned(core))
    core.add_group(group(3))
    core.add(spec(7, 1))
    answer(core, planned(core))
    assert (core.num_waiting, core.num_running) == (4, 0), "two rows were free; nobody passes those who wait for rows"
    planned(core)
    assert (core.num_waiting, core.num_running) == (0, 4)


def test_finishing_all_ends_swapped_sequences_too() -> None:
    core = Scheduler(CoreConfig(num_blocks=4, block_size=2, max_num_seqs=2, num_host_blocks=4, preemption_mode="swap"))
    core.add(spec(1, 4))
    core.add(spec(2, 4))
    for _ in range(2):
        answer(core, planned(core))
    core.add(spec(3, 1))
    assert (core.num_running, core.num_swapped, core.num_waiting) == (1, 1, 1)
    ends = core.finish_all(EndReason.WORKER_LOST)
    assert [end.sequence_id for end in ends] == [1, 2, 3]
    assert core.snapshot().num_free_host_blocks == 4
    assert core.schedule() is IDLE


def test_a_group_parts_that_a_smaller_pool_cannot_hold_together() -> None:
    core = Scheduler(CoreConfig(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=16))
    core.add_group(group(3))
    assert core.requeue_all(3) == ()
    ends: list[EndReason] = []
    while isinstance(plan := core.schedule(), StepPlan):
        ends += [end.reason for end in answer(core, plan).ends]
    assert ends == [EndReason.LENGTH] * 3


def open_ended(sequence_id: int, length: int) -> SequenceSpec:
    return replace(spec(sequence_id, length, max_tokens=1000), open_ended=True)


def test_an_open_end_is_where_the_pool_ends() -> None:
    core = Scheduler(CoreConfig(num_blocks=3, block_size=4))
    with pytest.raises(NeverFitsError, match="needs 4 blocks, pool 3: 13 prompt tokens, 4 per block") as caught:
        core.add(open_ended(1, 13))
    assert (caught.value.field, caught.value.value) == ("prompt", 13)
    core.add(open_ended(1, 10))
    ends: list[tuple[EndReason, int]] = []
    while isinstance(plan := core.schedule(), StepPlan):
        ends += [(end.reason, end.num_output_tokens) for end in answer(core, plan).ends]
    assert ends == [(EndReason.LENGTH, 3)], "12 places, and one token whose KV needs none"


def test_an_open_end_moves_with_the_pool() -> None:
    core = Scheduler(CoreConfig(num_blocks=8, block_size=4))
    for sequence_id in (1, 2, 3):
        core.add(open_ended(sequence_id, 2 + 4 * (sequence_id - 1)))
    for _ in range(3):
        answer(core, planned(core))
    ends = core.requeue_all(2)
    assert [(end.sequence_id, end.reason, end.num_output_tokens) for end in ends] == [
        (2, EndReason.LENGTH, 3),  # of 6 + 3 tokens the last needs no place
        (3, EndReason.CAPACITY, 3),
    ]
    later: list[tuple[EndReason, int]] = []
    while isinstance(plan := core.schedule(), StepPlan):
        later += [(end.reason, end.num_output_tokens) for end in answer(core, plan).ends]
    assert later == [(EndReason.LENGTH, 7)]


def test_a_copy_to_a_host_that_is_lost_before_it_is_sent_is_not_sent_to_the_next_one() -> None:
    core = Scheduler(CoreConfig(num_blocks=3, block_size=2, max_num_seqs=2, num_host_blocks=4, preemption_mode="swap"))
    core.add(spec(1, 3, max_tokens=2))
    core.add(spec(2, 1, max_tokens=4))
    first = planned(core)
    planned(core)
    answer(core, first)
    assert core.schedule() is WAITING, "2 found the pool dry, and 1 has its last token in flight"
    assert core.num_swapped == 1
    core.requeue_all(3, 4)
    plan = planned(core)
    assert len(plan.admissions) == 2
    assert len(plan.swap_out) == 0
