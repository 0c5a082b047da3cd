"""How a result is read against its plan, and that one which does not fit changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.config import CoreConfig
from scheduler.core.errors import ResultMismatchError
from scheduler.core.plan import StepPlan
from scheduler.core.result import EndReason, PromptScores, RowFlag, StepOutput, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import Sampling, SequenceSpec

GOOD = StepResult(epoch=0, step_id=1, num_sampled=(1, 1, 0), tokens=(5, 6))


def core_with_plans_in_flight(count: int = 2) -> Scheduler:
    """Two sequences that sample and one whose prompt is not through, in each of the plans."""
    core = Scheduler(CoreConfig(num_blocks=16, block_size=4, max_num_seqs=3, max_num_batched_tokens=8))
    for sequence_id, length in ((1, 2), (2, 3), (3, 20)):
        core.add(SequenceSpec(sequence_id=sequence_id, prompt=(sequence_id,) * length, max_tokens=4))
    for _ in range(count):
        plan = core.schedule()
        assert isinstance(plan, StepPlan)
        assert plan.max_samples == (1, 1, 0)
    return core


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_id": 2}, "result of step 2, but step 1 is the oldest in flight"),
        ({"num_sampled": (1, 1)}, "step 1: 2 rows for 3"),
        ({"flags": (RowFlag.OK,)}, "step 1: 1 flags for 3 rows"),
        ({"tokens": (5,)}, "step 1: num_sampled does not add up to 1"),
        ({"tokens": (5, 6, 7)}, "step 1: num_sampled does not add up to 3"),
        ({"logprobs": (-0.5,)}, "step 1: logprobs has not one entry per token"),
        ({"top_tokens": ((5,),)}, "step 1: top_tokens has not one entry per token"),
        ({"top_logprobs": ((-0.5,),)}, "step 1: top_logprobs has not one entry per token"),
        ({"num_sampled": (1, 0, 1)}, "step 1: 0 tokens for row 1 of the plan"),
        ({"num_sampled": (2, 0, 0)}, "step 1: 2 tokens for row 0 of the plan"),
        ({"flags": (RowFlag.OK, RowFlag.NON_FINITE, RowFlag.OK)}, "step 1: 1 tokens for row 1 of the plan"),
    ],
)
def test_a_result_that_does_not_fit_its_plan_changes_nothing(changes: dict[str, Any], message: str) -> None:
    core = core_with_plans_in_flight()
    before, counters = core.snapshot(), repr(core.counters)
    with pytest.raises(ResultMismatchError, match=message):
        core.update(replace(GOOD, **changes))
    assert (core.snapshot(), repr(core.counters)) == (before, counters)
    assert core.update(GOOD).token_ids == (5, 6)


def test_a_result_without_a_plan_is_refused() -> None:
    core = core_with_plans_in_flight(0)
    with pytest.raises(ResultMismatchError, match="result of step 1, but no plan is in flight"):
        core.update(GOOD)


def test_a_result_is_taken_once() -> None:
    core = core_with_plans_in_flight()
    core.update(GOOD)
    with pytest.raises(ResultMismatchError, match="result of step 1, but step 2 is the oldest in flight"):
        core.update(GOOD)


def test_a_result_of_an_older_epoch_is_dropped() -> None:
    core = core_with_plans_in_flight()
    core.requeue_all(16)
    before = core.snapshot()
    assert core.update(GOOD) == StepOutput()
    assert core.snapshot() == before


def test_columns_keep_the_entries_of_the_tokens_that_are_kept() -> None:
    core = core_with_plans_in_flight()
    core.finish(1, EndReason.ABORT)
    output = core.update(
        replace(
            GOOD,
            logprobs=(-0.5, -0.25),
            top_tokens=((5, 9), (6,)),
            top_logprobs=((-0.5, -1.5), (-0.25,)),
        )
    )
    assert output == StepOutput(
        sequence_ids=(2,), token_ids=(6,), logprobs=(-0.25,), top_tokens=((6,),), top_logprobs=((-0.25,),)
    )


def decoding(count: int, *, stop: frozenset[int] = frozenset(), max_tokens: int = 9) -> Scheduler:
    """Sequences 1..count that share nothing, all decoding, with one plan in flight."""
    core = Scheduler(CoreConfig(num_blocks=16, block_size=4, max_num_seqs=4))
    for sequence_id in range(1, count + 1):
        core.add(
            SequenceSpec(sequence_id=sequence_id, prompt=(sequence_id,), max_tokens=max_tokens, stop_token_ids=stop)
        )
    assert isinstance(core.schedule(), StepPlan)
    core.update(StepResult(epoch=0, step_id=1, num_sampled=(1,) * count, tokens=tuple(range(10, 10 + count))))
    assert isinstance(core.schedule(), StepPlan)
    return core


def booked(core: Scheduler) -> tuple[int, int, int]:
    counters = core.counters
    return counters.kept_tokens, counters.recomputed_tokens, counters.wasted_tokens


def test_a_member_that_left_the_decode_batch_is_settled_by_itself() -> None:
    core = decoding(4)
    core.finish(2, EndReason.ABORT)
    output = core.update(
        StepResult(epoch=0, step_id=2, num_sampled=(1,) * 4, tokens=(21, 22, 23, 24), logprobs=(-1.0, -2.0, -3.0, -4.0))
    )
    assert (output.sequence_ids, output.token_ids, output.logprobs) == ((1, 3, 4), (21, 23, 24), (-1.0, -3.0, -4.0))
    assert booked(core) == (7, 0, 1)


def test_a_member_with_its_last_token_in_flight_ends_by_length() -> None:
    core = decoding(2, max_tokens=2)
    output = core.update(StepResult(epoch=0, step_id=2, num_sampled=(1, 1), tokens=(21, 22)))
    assert sorted(zip(output.sequence_ids, output.token_ids, strict=True)) == [(1, 21), (2, 22)]
    assert {(end.sequence_id, end.reason, end.num_output_tokens) for end in output.ends} == {
        (1, EndReason.LENGTH, 2),
        (2, EndReason.LENGTH, 2),
    }


def test_a_stop_token_ends_the_member_that_has_it_among_its_own() -> None:
    core = decoding(3, stop=frozenset({22}))
    core.finish(3, EndReason.ABORT)
    output = core.update(StepResult(epoch=0, step_id=2, num_sampled=(1,) * 3, tokens=(21, 22, 22)))
    assert [(end.sequence_id, end.reason, end.stop_token_id) for end in output.ends] == [(2, EndReason.STOP, 22)]
    assert output.token_ids == (21, 22)


def test_a_failed_row_ends_its_member_and_the_others_decode_on() -> None:
    core = decoding(3)
    flags = (RowFlag.OK, RowFlag.NON_FINITE, RowFlag.OK)
    output = core.update(
        StepResult(epoch=0, step_id=2, num_sampled=(1, 0, 1), tokens=(21, 23), logprobs=(-1.0, -3.0), flags=flags)
    )
    assert (output.sequence_ids, output.token_ids, output.logprobs) == ((1, 3), (21, 23), (-1.0, -3.0))
    assert [(end.sequence_id, end.reason, end.num_output_tokens) for end in output.ends] == [
        (2, EndReason.NON_FINITE, 1)
    ]
    plan = core.schedule()
    assert isinstance(plan, StepPlan)
    assert (plan.num_tokens, plan.max_samples, plan.admissions) == ((1, 1), (1, 1), ())
    # The rows now come one by one, and are a batch again from the next plan on.
    output = core.update(StepResult(epoch=0, step_id=3, num_sampled=(1, 1), tokens=(31, 33)))
    assert (output.sequence_ids, output.token_ids) == ((1, 3), (31, 33))
    assert booked(core) == (8, 0, 0)
    assert core.counters.computed_tokens == 8


def test_a_failed_row_of_one_that_has_ended_already_changes_nobody() -> None:
    core = decoding(2)
    core.finish(1, EndReason.ABORT)
    flags = (RowFlag.NON_FINITE, RowFlag.OK)
    output = core.update(StepResult(epoch=0, step_id=2, num_sampled=(0, 1), tokens=(22,), flags=flags))
    assert (output.sequence_ids, output.token_ids, output.ends) == ((2,), (22,), ())
    assert booked(core) == (3, 0, 1)


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        (RowFlag.DEAD_END, EndReason.DEAD_END),
        (RowFlag.GRAMMAR_TOO_SLOW, EndReason.GRAMMAR_TOO_SLOW),
        (RowFlag.NON_FINITE, EndReason.NON_FINITE),
    ],
)
def test_only_a_row_that_is_not_finite_takes_its_kv_from_others(flag: RowFlag, reason: EndReason) -> None:
    """The two share their first block; what a row has no token for otherwise says nothing about its KV."""
    core = Scheduler(CoreConfig(num_blocks=16, block_size=4, max_num_seqs=2, max_plans_in_flight=1))
    for sequence_id in (1, 2):
        core.add(SequenceSpec(sequence_id=sequence_id, prompt=(1, 1, 1, 1, 9), max_tokens=9))
    core.schedule()
    output = core.update(StepResult(epoch=0, step_id=1, num_sampled=(0, 1), tokens=(6,), flags=(flag, RowFlag.OK)))
    assert [(end.sequence_id, end.reason, end.num_output_tokens) for end in output.ends] == [(1, reason, 0)]
    trusted = flag is not RowFlag.NON_FINITE
    assert (output.sequence_ids, output.token_ids) == (((2,), (6,)) if trusted else ((), ()))
    assert core.num_running == trusted
    plan = core.schedule()
    assert isinstance(plan, StepPlan)
    again = [(admission.sequence_id, admission.num_computed_tokens) for admission in plan.admissions]
    assert again == ([] if trusted else [(2, 0)])


def scoring(num_prompt_logprobs: int | None) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=1, prompt=(1,) * 9, max_tokens=3, sampling=Sampling(num_prompt_logprobs=num_prompt_logprobs)
    )


def test_logprobs_of_a_prompt_come_in_order_with_what_they_were_computed_with() -> None:
    core = Scheduler(CoreConfig(num_blocks=16, block_size=4, max_num_seqs=2, max_num_batched_tokens=5))
    core.add(scoring(2))
    first = core.schedule()
    assert isinstance(first, StepPlan) and first.num_tokens == (5,)
    result = StepResult(
        epoch=0,
        step_id=1,
        num_sampled=(0,),
        tokens=(),
        num_scored=(5,),
        scored_logprobs=(-1.0, -2.0, -3.0, -4.0, -5.0),
        scored_top_tokens=((1, 2),) * 5,
        scored_top_logprobs=((-0.5, -0.7),) * 5,
    )
    (scores,) = core.update(result).scores
    assert scores == PromptScores(1, result.scored_logprobs, result.scored_top_tokens, result.scored_top_logprobs)


@pytest.mark.parametrize(("asked", "cached"), [(None, 8), (0, 0)])
def test_a_prompt_whose_logprobs_are_asked_for_is_computed_though_it_is_cached(asked: int | None, cached: int) -> None:
    core = Scheduler(CoreConfig(num_blocks=16, block_size=4, max_num_seqs=2, max_plans_in_flight=1))
    core.add(replace(scoring(None), sequence_id=7, max_tokens=1))
    core.schedule()
    core.update(StepResult(epoch=0, step_id=1, num_sampled=(1,), tokens=(5,)))
    core.add(scoring(asked))
    plan = core.schedule()
    assert isinstance(plan, StepPlan)
    assert plan.admissions[0].num_computed_tokens == cached


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"num_scored": (5, 0), "scored_logprobs": (-1.0,) * 5}, "num_scored must have 1 entries that add up to 5"),
        ({"num_scored": (4,), "scored_logprobs": (-1.0,) * 5}, "num_scored must have 1 entries that add up to 5"),
        (
            {"num_scored": (1,), "scored_logprobs": (-1.0,), "scored_top_tokens": ((1,), (2,))},
            "scored_top_tokens has not one entry per scored token",
        ),
    ],
)
def test_scores_of_another_shape_are_refused(columns: dict[str, Any], message: str) -> None:
    core = Scheduler(CoreConfig(num_blocks=16, block_size=4, max_num_seqs=2, max_num_batched_tokens=5))
    core.add(scoring(0))
    core.schedule()
    with pytest.raises(ResultMismatchError, match=message):
        core.update(StepResult(epoch=0, step_id=1, num_sampled=(0,), tokens=(), **columns))


def test_what_a_sharer_of_a_failed_row_computed_is_not_indexed_when_it_loses_its_row() -> None:
    core = Scheduler(CoreConfig(num_blocks=16, block_size=4, max_num_seqs=2, max_plans_in_flight=1))
    for sequence_id in (1, 2):
        core.add(SequenceSpec(sequence_id=sequence_id, prompt=(1, 1, 1, 1, 9), max_tokens=9))
    for step_id in (1, 2, 3):
        core.schedule()
        core.update(StepResult(epoch=0, step_id=step_id, num_sampled=(1, 1), tokens=(5, 6)))
    assert core.snapshot().num_indexed_blocks == 1
    core.schedule()  # fills the second block of each; it would be indexed with the next plan
    flags = (RowFlag.NON_FINITE, RowFlag.OK)
    core.update(StepResult(epoch=0, step_id=4, num_sampled=(0, 1), tokens=(6,), flags=flags))
    assert core.snapshot().num_indexed_blocks == 0
    assert core.num_waiting == 1


def test_a_sharer_of_a_failed_row_gives_up_what_lies_on_the_host() -> None:
    core = Scheduler(
        CoreConfig(
            num_blocks=3,
            block_size=2,
            max_num_seqs=2,
            max_plans_in_flight=1,
            num_host_blocks=4,
            preemption_mode="swap",
        )
    )
    for sequence_id in (1, 2):
        core.add(SequenceSpec(sequence_id=sequence_id, prompt=(1, 1, 9), max_tokens=3))
    core.schedule()
    core.update(StepResult(epoch=0, step_id=1, num_sampled=(1, 1), tokens=(5, 6)))
    core.schedule()
    core.update(StepResult(epoch=0, step_id=2, num_sampled=(1, 1), tokens=(5, 6)))
    core.schedule()  # 1 needs a third block
    assert (core.num_running, core.num_swapped, core.snapshot().num_free_host_blocks) == (1, 1, 2)
    core.update(StepResult(epoch=0, step_id=3, num_sampled=(0,), tokens=(), flags=(RowFlag.NON_FINITE,)))
    assert (core.num_waiting, core.num_swapped, core.snapshot().num_free_host_blocks) == (1, 0, 4)
    plan = core.schedule()
    assert isinstance(plan, StepPlan)
    assert [(one.sequence_id, one.num_computed_tokens) for one in plan.admissions] == [(2, 0)]


def test_tokens_past_a_stop_string_are_wasted_wherever_they_are() -> None:
    core = decoding(3)
    for step_id in (2, 3):
        core.update(StepResult(epoch=0, step_id=step_id, num_sampled=(1,) * 3, tokens=(21, 22, 23)))
        assert isinstance(core.schedule(), StepPlan)
    generated = core.counters.generated_tokens
    end = core.finish(2, EndReason.STOP, 1)  # two more have come since, and one is in flight
    assert end is not None
    assert (end.reason, end.num_output_tokens, end.stop_token_id) == (EndReason.STOP, 1, None)
    assert core.finish(2, EndReason.STOP, 1) is None
    kept, _, wasted = booked(core)
    core.update(StepResult(epoch=0, step_id=4, num_sampled=(1,) * 3, tokens=(21, 22, 23)))
    assert booked(core) == (kept + 2 - 2, 0, wasted + 2 + 1)
    assert core.counters.generated_tokens == generated + 2 - 2


def test_no_counter_shrinks_when_kept_tokens_are_dropped() -> None:
    core = decoding(2)
    for step_id in (2, 3):
        core.update(StepResult(epoch=0, step_id=step_id, num_sampled=(1,) * 2, tokens=(21, 22)))
        assert isinstance(core.schedule(), StepPlan)
    core.finish(2, EndReason.STOP, 1)
    seen = [booked(core)]
    for step_id in (4, 5):
        core.update(
            StepResult(epoch=0, step_id=step_id, num_sampled=(1,) * (6 - step_id), tokens=(21, 22)[: 6 - step_id])
        )
        core.schedule()
        seen.append(booked(core))
    kept, _, wasted = seen[0]
    assert seen[1:] == [(kept, 0, wasted + 2), (kept, 0, wasted + 3)]
