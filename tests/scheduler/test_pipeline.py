"""Which plans travel together: two short decode steps do, where nobody waits for what comes of the first."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.config import CoreConfig
from scheduler.core.plan import StepPlan
from scheduler.core.result import EndReason, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import Sampling, SequenceSpec
from scheduler.pipeline import Pipeline

SHORT_NS = 5_000_000
LONG_NS = 20_000_000


def spec(sequence_id: int, num_prompt: int = 5, max_tokens: int = 40) -> SequenceSpec:
    prompt = tuple(range(100 * sequence_id, 100 * sequence_id + num_prompt))
    return SequenceSpec(sequence_id=sequence_id, prompt=prompt, max_tokens=max_tokens, sampling=Sampling(), seed=1)


class Drive:
    """A core, its pipeline, and a worker whose steps take `step_ns`."""

    def __init__(self, max_plans_in_flight: int = 4, **limits: Any) -> None:
        limits = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 16} | limits
        self.core = Scheduler(CoreConfig(max_plans_in_flight=max_plans_in_flight, **limits))
        self.pipeline = Pipeline(self.core)
        self.messages: list[tuple[StepPlan, ...]] = []
        self.step_ns = SHORT_NS

    def send(self) -> list[int]:
        """Sends as many messages as there are to send; -> the plans of each."""
        sizes = []
        while plans := self.pipeline.next_message(self.core.schedule):
            self.messages.append(plans)
            sizes.append(len(plans))
        return sizes

    def answer(self) -> None:
        """Results of the oldest message."""
        plans = self.messages.pop(0)
        assert self.pipeline.oldest == plans
        for number, plan in enumerate(plans, 1):
            samples = plan.max_samples
            result = StepResult(
                epoch=self.core.epoch,
                step_id=plan.step_id,
                num_sampled=samples,
                tokens=(7,) * sum(samples),
                execute_ns=self.step_ns,
            )
            self.core.update(result)
            assert self.pipeline.settle(result) == (plan, number == len(plans))

    def turn(self) -> list[int]:
        """What is sent once the oldest message is answered."""
        self.answer()
        return self.send()


def test_decodes_go_in_pairs_once_the_steps_are_known_to_be_short() -> None:
    drive = Drive()
    drive.core.add(spec(1))
    assert drive.send() == [1, 1]  # the prompt; a decode while nothing is known of this worker
    assert [drive.turn() for _ in range(3)] == [[2], [2], [2]]
    drive.step_ns = LONG_NS
    assert [drive.turn() for _ in range(3)] == [[1], [1], [1]]
    drive.step_ns = SHORT_NS
    assert drive.turn() == [2]


@pytest.mark.parametrize(("max_plans_in_flight", "sizes"), [(1, [1]), (2, [1, 1])])
def test_with_fewer_plans_in_flight_none_travel_together(max_plans_in_flight: int, sizes: list[int]) -> None:
    drive = Drive(max_plans_in_flight)
    drive.core.add(spec(1))
    assert drive.send() == sizes
    assert [drive.turn() for _ in range(4)] == [[1]] * 4


def test_what_arrives_is_planned_in_the_next_message_and_alone() -> None:
    drive = Drive()
    drive.core.add(spec(1))
    drive.send()
    assert [drive.turn() for _ in range(3)] == [[2], [2], [2]]
    drive.core.add(spec(2))
    assert drive.turn() == [1]
    assert [admission.sequence_id for admission in drive.messages[-1][0].admissions] == [2]
    assert drive.turn() == [2]


def test_a_prompt_in_chunks_keeps_plans_apart() -> None:
    drive = Drive()
    drive.core.add(spec(1, max_tokens=60))
    drive.send()
    assert [drive.turn() for _ in range(2)] == [[2], [2]]
    drive.core.add(spec(2, num_prompt=40))
    sizes = [drive.turn() for _ in range(4)]
    assert sizes == [[1], [1], [1], [2]]  # 40 tokens in steps of 15 beside the decode
    assert [sum(plans[0].num_tokens) for plans in drive.messages[:1]] == [1 + 10]


def test_who_waits_for_a_row_gets_the_first_that_is_free() -> None:
    drive = Drive(max_num_seqs=2)
    drive.core.add(spec(1))
    drive.core.add(spec(2))
    drive.core.add(spec(3))
    drive.send()
    assert [drive.turn() for _ in range(3)] == [[1], [1], [1]]
    drive.core.finish(1, EndReason.ABORT)
    assert drive.turn() == [1]
    assert drive.messages[-1][0].admissions


def test_the_last_token_is_not_followed_by_a_plan() -> None:
    drive = Drive()
    drive.core.add(spec(1, max_tokens=4))
    assert drive.send() == [1, 1]
    assert drive.turn() == [2]
    assert drive.turn() == []
    drive.answer()
    assert (drive.core.num_running, drive.pipeline.oldest) == (0, ())


def test_after_a_loss_nothing_is_awaited() -> None:
    drive = Drive()
    drive.core.add(spec(1))
    drive.send()
    assert drive.turn() == [2]
    drive.core.requeue_all(64)
    drive.pipeline.clear()
    drive.messages.clear()
    assert drive.pipeline.oldest == ()
    assert drive.send() == [1, 2]
