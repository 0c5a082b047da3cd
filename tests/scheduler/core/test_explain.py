"""Explanations against what `schedule` then does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scheduler.core.config import CoreConfig
from scheduler.core.explain import Constraint, Explanation, block_holders, explain
from scheduler.core.history import DecisionKind
from scheduler.core.plan import StepPlan
from scheduler.core.result import EndReason
from scheduler.core.sequence import SequenceSpec
from tests.scheduler.core import toy_model
from tests.scheduler.core.lab import Lab


def lab(**limits: Any) -> Lab:
    defaults: dict[str, Any] = {"num_blocks": 12, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    return Lab(CoreConfig(**(defaults | limits)))


def spec(sequence_id: int, num_prompt: int, *, max_tokens: int = 8, **fields: Any) -> SequenceSpec:
    first = 1 + sequence_id % (toy_model.VOCABULARY - 1)  # no two of a test share a prefix
    return SequenceSpec(sequence_id=sequence_id, prompt=(first,) * num_prompt, max_tokens=max_tokens, **fields)


def told(bench: Lab, sequence_id: int) -> Explanation:
    explanation = explain(bench.core, sequence_id)
    assert explanation is not None
    return explanation


def test_an_unknown_sequence_has_no_explanation() -> None:
    assert explain(lab().core, 1) is None


def test_blocks_with_all_numbers() -> None:
    bench = lab(num_blocks=13, watermark=2, max_overtakes=0)
    bench.add(spec(1, 30))
    bench.schedule()
    bench.add(spec(2, 17))
    bench.add(spec(3, 1))
    waiting = told(bench, 2)
    needs = waiting.needs
    assert (waiting.constraint, waiting.position, waiting.root) == (Constraint.BLOCKS, 0, None)
    assert (needs.blocks_needed, needs.blocks_free, needs.blocks_evictable, needs.watermark) == (5, 5, 0, 2)
    behind = told(bench, 3)
    assert (behind.constraint, behind.position) == (Constraint.QUEUE, 1)
    assert behind.root is not None and behind.root.sequence.sequence_id == 2
    assert behind.root.constraint is Constraint.BLOCKS
    assert behind.needs.blocks_needed == 1


def test_cached_blocks_count_as_evictable_unless_it_would_use_them_itself() -> None:
    bench = lab(num_blocks=12, watermark=1)
    bench.add(spec(1, 12))
    bench.schedule()
    bench.deliver()
    bench.finish(1, EndReason.ABORT)
    bench.add(spec(2, 8))
    bench.schedule()
    bench.add(SequenceSpec(sequence_id=3, prompt=spec(1, 44).prompt, max_tokens=4))
    needs = told(bench, 3).needs
    # 44 tokens are 11 blocks, 3 of which are found; 2 are held by the other one.
    assert (needs.blocks_cached, needs.blocks_needed, needs.blocks_evictable) == (3, 8, 0)
    assert needs.blocks_free == 12 - 3 - 2
    assert told(bench, 3).constraint is Constraint.BLOCKS


def test_rows_and_the_token_budget() -> None:
    bench = lab(max_num_seqs=1, max_num_batched_tokens=8, num_blocks=32)
    bench.add(spec(1, 20))
    bench.add(spec(2, 4))
    bench.schedule()
    running, waiting = told(bench, 1), told(bench, 2)
    assert (running.constraint, running.needs.tokens_available) == (Constraint.NONE, 8)
    assert waiting.constraint is Constraint.TOKEN_BUDGET
    assert (waiting.needs.tokens_available, waiting.needs.token_budget) == (0, 8)
    bench.schedule()
    waiting = told(bench, 2)  # four tokens of the prompt are left, four are to be had
    assert (waiting.constraint, waiting.needs.tokens_available) == (Constraint.ROWS, 4)
    assert (waiting.needs.rows_needed, waiting.needs.rows_free, waiting.needs.rows_total) == (1, 0, 1)


def test_the_result_of_the_last_token_is_awaited() -> None:
    bench = lab()
    bench.add(spec(1, 4, max_tokens=1))
    bench.schedule()
    assert told(bench, 1).constraint is Constraint.RESULT


def test_siblings_are_counted_and_wait_for_the_first() -> None:
    bench = lab(max_num_seqs=2, num_blocks=64, max_num_batched_tokens=8)
    bench.add(spec(9, 4))
    bench.schedule()
    bench.add(spec(1, 11), SequenceSpec(sequence_id=2, prompt=spec(1, 11).prompt, max_tokens=8, seed=1))
    leader, sibling = told(bench, 1), told(bench, 2)
    assert (leader.constraint, leader.needs.rows_needed, leader.needs.rows_free) == (Constraint.ROWS, 2, 1)
    assert leader.needs.blocks_needed == 3 + 1
    assert sibling.constraint is Constraint.FORK
    assert sibling.root is not None and sibling.root.sequence.sequence_id == 1
    bench.deliver()
    bench.finish(9, EndReason.ABORT)
    bench.schedule()
    assert told(bench, 2).constraint is Constraint.FORK  # it has a row, and its leader half of the prompt
    bench.schedule()
    bench.deliver()
    bench.schedule()
    assert told(bench, 2).constraint is not Constraint.FORK


def test_holders_are_ordered_and_count_what_their_end_would_give() -> None:
    bench = lab(num_blocks=32)
    bench.add(spec(1, 9))
    bench.schedule()
    bench.add(SequenceSpec(sequence_id=2, prompt=spec(1, 14).prompt, max_tokens=4))
    bench.add(spec(3, 2))
    bench.schedule()
    holders, total = block_holders(bench.core.snapshot(), 2)
    assert total == 3
    assert [(holder.sequence.sequence_id, holder.num_exclusive) for holder in holders] == [(2, 2), (1, 1)]


def test_the_history_tells_of_a_preemption() -> None:
    bench = lab(num_blocks=6, preemption_mode="recompute")
    bench.add(spec(1, 8, max_tokens=12))
    bench.add(spec(2, 8, max_tokens=12))
    while not bench.core.counters.preemptions:
        bench.schedule()
        bench.deliver()
    history = told(bench, 2).sequence.history
    assert [entry.kind for entry in history] == [DecisionKind.QUEUED, DecisionKind.ADMITTED, DecisionKind.PREEMPTED]
    assert [entry.step_id for entry in history] == sorted(entry.step_id for entry in history)
    bench.drain()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "limits",
    [
        {"preemption_mode": "recompute"},
        {"preemption_mode": "swap", "num_host_blocks": 20, "bytes_per_block": 1},
        {"preemption_mode": "swap", "num_host_blocks": 6, "bytes_per_block": 1, "max_overtakes": 1, "watermark": 2},
        {"policy": "fcfs", "max_num_batched_tokens": 8, "max_overtakes": 0},
    ],
    ids=["recompute", "swap", "overtaking", "fcfs"],
)
def test_what_is_held_up_is_not_admitted_and_what_is_not_is(limits: dict[str, Any], seed: int) -> None:
    bench, dice = lab(max_num_waiting=24, **limits), random.Random(seed)
    seen: set[Constraint] = set()
    for number in range(600):
        if dice.random() < 0.3 and bench.core.num_waiting < 20:
            bench.add(*_group(100 + 10 * number, dice))
        if dice.random() < 0.02 and bench.live:
            bench.finish(dice.choice(list(bench.live)), EndReason.ABORT)
        if bench.undelivered and dice.random() < 0.5:
            bench.deliver()
        else:
            seen |= _check_one_step(bench)
    bench.drain()
    assert {Constraint.NONE, Constraint.BLOCKS, Constraint.QUEUE} <= seen


def _group(first_id: int, dice: random.Random) -> list[SequenceSpec]:
    prompt = tuple(dice.choices(range(1, toy_model.VOCABULARY), k=dice.randint(1, 20)))
    priority, max_tokens = dice.choice((0, 0, 1)), dice.randint(1, 12)
    return [
        SequenceSpec(sequence_id=first_id + index, prompt=prompt, max_tokens=max_tokens, seed=index, priority=priority)
        for index in range(dice.choice((1, 1, 1, 2)))
    ]


def _check_one_step(bench: Lab) -> set[Constraint]:
    """Explains everybody who is not running, plans, and compares."""
    before = bench.core.snapshot()
    explained = [told(bench, sequence.sequence_id) for sequence in (*before.swapped, *before.waiting)]
    preemptions = bench.core.counters.preemptions
    plan = bench.schedule()
    if not isinstance(plan, StepPlan) or bench.core.counters.preemptions != preemptions:
        return set()  # nothing was planned, or a preemption moved blocks and rows within the step
    running = {sequence.sequence_id for sequence in bench.core.snapshot().running}
    for explanation in explained:
        if explanation.constraint not in (Constraint.NONE, Constraint.FORK):
            assert explanation.sequence.sequence_id not in running, explanation
    head = explained[0] if explained else None
    took_first = bool(plan.edit_rows) or sum(plan.num_tokens) == bench.config.max_num_batched_tokens
    if head is not None and head.constraint is Constraint.NONE and not took_first:
        assert head.sequence.sequence_id in running, head
    return {explanation.constraint for explanation in explained}
