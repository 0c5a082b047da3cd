"""How a result is read against its plan, and that one which does not fit changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.config import CoreConfig
from scheduler.core.errors import ResultMismatchError
from scheduler.core.plan import StepPlan
from scheduler.core.result import EndReason, RowFlag, StepOutput, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec

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
