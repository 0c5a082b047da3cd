"""Who is served when: bounds on waiting, counted in steps and in sequences that pass."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.config import CoreConfig
from scheduler.core.plan import WAITING, StepPlan
from scheduler.core.result import EndReason
from scheduler.core.sequence import SequenceSpec
from tests.scheduler.core import toy_model
from tests.scheduler.core.lab import Lab


def lab(**limits: Any) -> Lab:
    defaults: dict[str, Any] = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 16}
    return Lab(CoreConfig(**(defaults | limits)))


def spec(sequence_id: int, num_prompt: int, *, max_tokens: int = 40, priority: int = 0) -> SequenceSpec:
    first = 1 + sequence_id % (toy_model.VOCABULARY - 1)
    return SequenceSpec(
        sequence_id=sequence_id,
        prompt=(first,) * num_prompt,
        max_tokens=max_tokens,
        priority=priority,
        cache_salt=str(sequence_id),
    )


def row_of(bench: Lab, sequence_id: int) -> int:
    row = {one.sequence_id: one.row for one in bench.core.snapshot().running}[sequence_id]
    assert row is not None
    return row


@pytest.mark.parametrize("max_plans_in_flight", [1, 2])
@pytest.mark.parametrize("prompt_first", [False, True])
def test_a_long_prompt_never_delays_a_running_decode(max_plans_in_flight: int, prompt_first: bool) -> None:
    """Every plan holds a token of every sequence that lacks just one, until the prompt is through and beyond."""
    bench = lab(max_plans_in_flight=max_plans_in_flight)
    for sequence_id in (1, 2):
        bench.add(spec(sequence_id, 3, priority=prompt_first))
    bench.schedule()
    bench.deliver()
    bench.add(spec(3, 150, max_tokens=2))
    prompt_plans = 0
    for _ in range(15):
        plan = bench.schedule()
        assert isinstance(plan, StepPlan)
        tokens = dict(zip(plan.rows, plan.num_tokens, strict=True))
        assert [tokens[row_of(bench, sequence_id)] for sequence_id in (1, 2)] == [1, 1]
        prompt_plans += max(plan.num_tokens) > 1
        bench.deliver()
    assert prompt_plans == 11, "150 tokens, 14 of them beside two decodes in each plan"
    bench.drain()


def test_several_long_prompts_are_computed_in_order_of_service() -> None:
    bench = lab(max_num_batched_tokens=8)
    bench.add(spec(1, 20))
    bench.add(spec(2, 20))
    started: list[list[int]] = []
    for _ in range(3):
        bench.schedule()
        bench.deliver()
        started.append([one.sequence_id for one in bench.core.snapshot().running])
    assert started == [[1], [1], [1, 2]], "the second gets the budget that the first one's last chunk leaves"


@pytest.mark.parametrize("max_overtakes", [0, 1, 3])
def test_one_that_waits_for_blocks_is_passed_max_overtakes_times(max_overtakes: int) -> None:
    bench = lab(num_blocks=8, max_overtakes=max_overtakes)
    bench.add(spec(1, 16, max_tokens=9))
    bench.schedule()
    bench.deliver()
    bench.add(spec(2, 24, max_tokens=1))
    for sequence_id in range(3, 10):
        bench.add(spec(sequence_id, 1, max_tokens=1))
    passed = 0
    while 1 in bench.live:
        plan = bench.schedule()
        if isinstance(plan, StepPlan):
            passed += len(plan.admissions)
        bench.deliver()
        assert 2 in bench.live
    assert passed == max_overtakes
    assert bench.core.snapshot().waiting[0].num_overtaken == max_overtakes
    bench.schedule()
    assert bench.core.snapshot().running[0].sequence_id == 2, "the blocks were kept for it"
    bench.drain()


def test_nobody_passes_one_that_waits_for_a_row() -> None:
    bench = lab(max_num_seqs=2)
    bench.add(spec(1, 4))
    bench.schedule()
    bench.add(spec(2, 4), spec_like(2, 3))
    bench.add(spec(4, 1))
    plan = bench.schedule()
    assert isinstance(plan, StepPlan)
    assert plan.admissions == ()


def spec_like(sequence_id: int, other_id: int) -> SequenceSpec:
    """Another sequence of the same request."""
    first = spec(sequence_id, 4)
    return SequenceSpec(
        sequence_id=other_id, prompt=first.prompt, max_tokens=first.max_tokens, seed=1, cache_salt=first.cache_salt
    )


def test_one_of_lower_priority_may_pass_and_gives_way_once_that_lets_the_other_in() -> None:
    bench = lab(num_blocks=8, max_num_batched_tokens=64, max_plans_in_flight=1)
    bench.add(spec(1, 16, max_tokens=12))
    bench.schedule()
    bench.deliver()
    bench.add(spec(2, 32, max_tokens=1))
    bench.add(spec(3, 2, max_tokens=20, priority=1))
    bench.schedule()
    picture = bench.core.snapshot()
    assert [one.sequence_id for one in picture.running] == [1, 3]
    assert [(one.sequence_id, one.num_overtaken) for one in picture.waiting] == [(2, 1)]
    bench.deliver()
    bench.schedule()
    assert bench.core.counters.preemptions == 0, "2 needs all 8 blocks, and 1 holds 5"
    bench.deliver()
    bench.finish(1, EndReason.ABORT)
    bench.schedule()
    picture = bench.core.snapshot()
    assert [one.sequence_id for one in picture.running] == [2]
    assert [one.sequence_id for one in picture.waiting] == [3]
    bench.drain()


@pytest.mark.parametrize("preemption_mode", ["recompute", "swap"])
def test_an_urgent_sequence_takes_the_last_of_those_of_lower_priority(preemption_mode: str) -> None:
    bench = lab(num_blocks=6, num_host_blocks=6, preemption_mode=preemption_mode)
    for sequence_id, priority in ((1, 2), (2, 0), (3, 1), (4, 2)):
        bench.add(spec(sequence_id, 3, max_tokens=4, priority=priority))
    bench.schedule()
    bench.deliver()
    bench.add(spec(5, 16, max_tokens=1, priority=0))
    plan = bench.schedule()
    assert isinstance(plan, StepPlan)
    assert [admission.sequence_id for admission in plan.admissions] == [5]
    picture = bench.core.snapshot()
    assert [one.sequence_id for one in picture.running] == [2, 5, 3]
    preempted = picture.swapped if preemption_mode == "swap" else picture.waiting
    assert [one.sequence_id for one in preempted] == [1, 4]
    bench.drain()


@pytest.mark.parametrize(("priority", "preemptions"), [(0, 1), (1, 0), (2, 0)])
def test_only_those_of_lower_priority_give_way(priority: int, preemptions: int) -> None:
    bench = lab(max_num_seqs=1)
    bench.add(spec(1, 4, priority=1))
    bench.schedule()
    bench.deliver()
    bench.add(spec(2, 4, priority=priority))
    bench.schedule()
    assert bench.core.counters.preemptions == preemptions
    bench.drain()


def test_nobody_is_preempted_for_one_that_stays_out_all_the_same() -> None:
    bench = lab(num_blocks=10, watermark=3)
    bench.add(spec(1, 8, max_tokens=24))
    bench.add(spec(2, 12, max_tokens=8, priority=1))
    bench.schedule()
    bench.deliver()
    bench.add(spec(3, 24, max_tokens=8))
    bench.schedule()
    assert bench.core.counters.preemptions == 0, "with 2 preempted, 2 blocks would be left; the watermark is 3"
    bench.drain()


def test_nobody_is_preempted_for_one_that_growing_sequences_leave_no_room_for() -> None:
    bench = lab(num_blocks=6, max_plans_in_flight=1, enable_prefix_caching=False)
    bench.add(spec(1, 8, max_tokens=9))
    bench.add(spec(2, 4, max_tokens=4, priority=1))
    bench.schedule()
    bench.deliver()
    bench.add(spec(3, 16, max_tokens=1))
    bench.schedule()
    assert bench.core.counters.preemptions == 0, "1 takes its third block first; without 2 there would be 3, not 4"
    bench.drain()


def test_nobody_is_preempted_for_one_that_a_prompt_leaves_no_budget_for() -> None:
    bench = lab(max_num_seqs=2, max_num_batched_tokens=8, max_plans_in_flight=1)
    bench.add(spec(1, 4, priority=1))
    bench.schedule()
    bench.deliver()
    bench.add(spec(2, 20))
    bench.schedule()
    bench.deliver()
    bench.add(spec(3, 4, max_tokens=1))
    bench.schedule()
    assert bench.core.counters.preemptions == 0, "13 tokens of 2 were left, and it comes first"
    bench.deliver()
    bench.schedule()
    assert bench.core.counters.preemptions == 1, "6 are left, and 2 for the other"
    bench.drain()


def test_blocks_that_an_urgent_sequence_would_find_do_not_count_twice() -> None:
    bench = lab(num_blocks=8, max_plans_in_flight=1, max_num_batched_tokens=64)
    shared = tuple(range(1, 9))
    bench.add(SequenceSpec(sequence_id=1, prompt=(9,) * 11, max_tokens=2))
    bench.add(SequenceSpec(sequence_id=2, prompt=(*shared, 5), max_tokens=9, priority=1))
    bench.schedule()
    bench.deliver()
    bench.add(SequenceSpec(sequence_id=3, prompt=(*shared, *(6,) * 18), max_tokens=1))
    bench.schedule()
    # It needs 7 blocks, of which it would find 2 that 2 holds. 2 are free, and 2 holds one more.
    assert bench.core.counters.preemptions == 0
    bench.drain()


def test_the_watermark_does_not_count_against_one_that_is_left_alone() -> None:
    bench = lab(num_blocks=8, watermark=3)
    bench.add(spec(1, 8, priority=1, max_tokens=8))
    bench.schedule()
    bench.deliver()
    bench.add(spec(2, 28, max_tokens=4))
    bench.schedule()
    assert [one.sequence_id for one in bench.core.snapshot().running] == [2]
    bench.drain()


def test_first_come_first_served_looks_at_no_priority() -> None:
    bench = lab(max_num_seqs=1, policy="fcfs")
    bench.add(spec(1, 4, max_tokens=6, priority=9))
    bench.schedule()
    bench.add(spec(2, 4, max_tokens=1, priority=1))
    bench.add(spec(3, 4, max_tokens=1, priority=-1))
    bench.drain()
    assert list(bench.ends) == [1, 2, 3]
    assert bench.core.counters.preemptions == 0


def test_the_victim_is_among_the_last_four_in_order_of_service() -> None:
    bench = lab(num_blocks=24, preemption_mode="recompute", max_num_batched_tokens=99, max_plans_in_flight=1)
    # All hold 4 blocks when 1 needs another one. 2 has the fewest tokens to compute anew, but comes early; 4 is next.
    for sequence_id, length in ((1, 13), (2, 11), (3, 13), (4, 12), (5, 13), (6, 13)):
        bench.add(spec(sequence_id, length, max_tokens=12))
    while not bench.core.counters.preemptions:
        bench.schedule()
        bench.deliver()
    assert bench.core.snapshot().waiting[0].sequence_id == 4
    bench.drain()


def test_one_that_comes_back_from_the_host_takes_what_others_have_computed_further() -> None:
    bench = lab(max_num_seqs=1, max_num_batched_tokens=8, num_host_blocks=8, preemption_mode="swap")
    prompt = tuple(range(1, 11)) * 4
    bench.add(SequenceSpec(sequence_id=1, prompt=prompt, max_tokens=2, priority=1))
    bench.schedule()
    bench.deliver()
    bench.add(SequenceSpec(sequence_id=2, prompt=prompt, max_tokens=1))
    bench.schedule()
    assert [one.num_host_blocks for one in bench.core.snapshot().swapped] == [2]
    while 2 in bench.live:
        bench.deliver()
        plan = bench.schedule()
    assert isinstance(plan, StepPlan)
    assert [admission.num_computed_tokens for admission in plan.admissions] == [36]
    assert len(plan.swap_in) == 0, "all that lay on the host was found on the device"
    bench.drain()


def test_one_comes_back_from_the_host_only_after_the_result_of_the_plan_that_it_was_in() -> None:
    bench = lab(num_blocks=3, block_size=2, max_num_seqs=2, num_host_blocks=4, preemption_mode="swap")
    bench.add(spec(1, 3, max_tokens=2))
    bench.add(spec(2, 1, max_tokens=4))
    bench.schedule()
    bench.schedule()
    bench.deliver()
    for _ in range(2):  # it finds the pool dry; then its block is free, but its last token is still in flight
        assert bench.schedule() is WAITING
        assert bench.core.num_swapped == 1
    bench.deliver()
    plan = bench.schedule()
    assert isinstance(plan, StepPlan)
    assert [(one.sequence_id, one.num_computed_tokens) for one in plan.admissions] == [(2, 2)]
    bench.drain()


def test_a_victim_is_of_the_lowest_priority_even_if_another_costs_less() -> None:
    bench = lab(num_blocks=9, preemption_mode="recompute", max_num_batched_tokens=99, max_plans_in_flight=1)
    for sequence_id, length, priority in ((1, 12, 0), (2, 9, 0), (3, 12, 1)):
        bench.add(spec(sequence_id, length, max_tokens=9, priority=priority))
    bench.schedule()
    bench.deliver()
    bench.schedule()
    assert bench.core.counters.preemptions == 1, "1 needs a fourth block; 2 holds as many as 3 and has fewer tokens"
    assert [one.sequence_id for one in bench.core.snapshot().waiting] == [3]
    bench.drain()


@pytest.mark.parametrize(("num_before", "found"), [(16, True), (17, False)])
def test_the_queue_is_searched_sixteen_places_behind_its_head(num_before: int, found: bool) -> None:
    bench = lab(num_blocks=8, max_overtakes=100)
    bench.add(spec(1, 16, max_tokens=9))
    bench.schedule()
    for sequence_id in range(2, 2 + num_before):
        bench.add(spec(sequence_id, 24, max_tokens=1))
    bench.add(spec(99, 1, max_tokens=1))
    plan = bench.schedule()
    assert isinstance(plan, StepPlan)
    assert [admission.sequence_id for admission in plan.admissions] == [99] * found
    bench.drain()


def test_a_prompt_does_not_delay_decodes_that_a_failed_row_took_out_of_the_batch() -> None:
    bench = lab(max_num_batched_tokens=8, max_plans_in_flight=1, max_num_seqs=4)
    for sequence_id in (1, 2):
        bench.add(spec(sequence_id, 3, priority=1))
    bench.schedule()
    bench.deliver()
    bench.add(spec(3, 100, max_tokens=1))
    bench.schedule(faulty_row=0)
    bench.deliver()
    assert [end.reason for end in bench.ends.values()] == [EndReason.NON_FINITE]
    plan = bench.schedule()  # the lab checks, too, that who lacks one token gets it
    assert isinstance(plan, StepPlan)
    assert sorted(plan.num_tokens) == [1, 7]
    bench.drain()
