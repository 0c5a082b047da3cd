"""The engine over real gRPC, against a worker that answers as each test tells it to."""

from __future__ import annotations

import asyncio

import pytest

from octavo.worker.v1alpha1 import worker_pb2 as pb
from scheduler.core.result import EndReason
from scheduler.messages import Cancel
from tests.scheduler.running_engine import core_of, running_engine, spec
from tests.scheduler.scripted_worker import ScriptedWorker, counting


@pytest.mark.parametrize("plans", [1, 2, 4])
def test_tokens_arrive_in_order_and_the_end_wastes_no_step(plans: int) -> None:
    async def case() -> None:
        worker = ScriptedWorker()
        async with running_engine(worker, plans=plans) as (engine, listener, _):
            engine.send(spec())
            await listener.until(lambda: 1 in listener.ends)
            assert listener.tokens[1] == [101, 102, 103, 104, 105]
            assert listener.ends[1].reason is EndReason.LENGTH
            assert [plan.step_id for plan in worker.plans] == [1, 2, 3, 4, 5]

    asyncio.run(case())


def test_two_plans_are_sent_before_the_first_result_and_not_a_third() -> None:
    async def case() -> None:
        worker = ScriptedWorker()
        worker.gate.clear()
        async with running_engine(worker) as (engine, listener, _):
            engine.send(spec())
            await listener.until(lambda: core_of(engine).num_plans_in_flight == 2)
            assert not listener.tokens
            worker.gate.set()
            await listener.until(lambda: 1 in listener.ends)
            assert len(worker.plans) == 5

    asyncio.run(case())


def test_short_steps_are_sent_in_pairs_and_watched_one_by_one() -> None:
    async def case() -> None:
        worker = ScriptedWorker()
        async with running_engine(worker, plans=4) as (engine, listener, _):
            with engine.steps.watch() as watch:
                engine.send(spec(max_tokens=12))
                await listener.until(lambda: 1 in listener.ends)
                assert listener.tokens[1] == list(range(101, 113))
                assert worker.num_plans == [1, 1, 2, 2, 2, 2, 2]
                assert [(await anext(watch)).summary.step_id for _ in range(12)] == list(range(1, 13))

    asyncio.run(case())


def test_a_worker_lost_between_pairs_costs_no_token_and_repeats_none() -> None:
    async def case() -> None:
        worker = ScriptedWorker(lambda plan: None if plan.step_id == 6 else counting(plan))
        async with running_engine(worker, plans=4) as (engine, listener, _):
            engine.send(spec(max_tokens=12))
            await listener.until(lambda: 1 in listener.ends)
            assert worker.num_plans[:4] == [1, 1, 2, 2]
            readmission = next(plan for plan in worker.plans if plan.step_id > 6 and plan.admissions).admissions[0]
            assert list(readmission.token_ids) == [*range(6), *range(101, 105)]
            assert len(listener.tokens[1]) == 12

    asyncio.run(case())


def test_a_lost_worker_costs_no_token_and_repeats_none() -> None:
    async def case() -> None:
        worker = ScriptedWorker(lambda plan: None if plan.step_id == 3 else counting(plan))
        async with running_engine(worker) as (engine, listener, _):
            engine.send(spec(max_tokens=8))
            await listener.until(lambda: 1 in listener.ends)
            assert len(listener.tokens[1]) == 8
            assert listener.health == [False, True, False, True]
            readmission = next(plan for plan in worker.plans if plan.step_id > 3 and plan.admissions).admissions[0]
            assert list(readmission.token_ids) == [*range(6), 101, 102]
            assert (readmission.num_computed_tokens, readmission.output_index) == (0, 2)
            assert worker.opens[1].group_epoch == worker.opens[0].group_epoch

    asyncio.run(case())


def test_without_a_worker_within_the_grace_requests_fail_and_new_ones_too() -> None:
    async def case() -> None:
        worker = ScriptedWorker()
        worker.gate.clear()
        async with running_engine(worker, grace_s=0.3) as (engine, listener, _):
            engine.send(spec())
            await listener.until(lambda: core_of(engine).num_plans_in_flight == 2)
            await worker.die()
            await listener.until(lambda: 1 in listener.ends)
            engine.send(spec(2))
            await listener.until(lambda: 2 in listener.ends)
            assert {end.reason for end in listener.ends.values()} == {EndReason.WORKER_LOST}
            assert core_of(engine).num_waiting == 0

    asyncio.run(case())


def test_a_worker_that_comes_back_with_fewer_blocks_gets_what_still_fits() -> None:
    async def case() -> None:
        worker = ScriptedWorker()
        worker.gate.clear()
        async with running_engine(worker) as (engine, listener, port):
            engine.send(spec(1, prompt=6, max_tokens=5))
            engine.send(spec(2, prompt=20, max_tokens=20))
            await listener.until(lambda: core_of(engine).num_plans_in_flight == 2)
            await worker.die()
            smaller = ScriptedWorker(num_blocks=4)
            await smaller.start(port)
            await listener.until(lambda: len(listener.ends) == 2)
            assert listener.ends[1].reason is EndReason.LENGTH
            assert listener.ends[2].reason is EndReason.CAPACITY
            assert smaller.opens[0].num_device_blocks == 4
            await smaller.die()

    asyncio.run(case())


def test_a_result_that_answers_no_plan_ends_the_session_not_the_request() -> None:
    lies = [True]

    def answer(plan: pb.StepPlan) -> pb.StepResult:
        result = counting(plan)
        if plan.step_id == 2 and lies.pop():
            result.step_id = 99
        return result

    async def case() -> None:
        worker = ScriptedWorker(answer)
        async with running_engine(worker) as (engine, listener, _):
            engine.send(spec())
            await listener.until(lambda: 1 in listener.ends)
            assert len(listener.tokens[1]) == 5
            assert listener.health == [False, True, False, True]

    asyncio.run(case())


def test_a_request_that_kills_every_worker_ends_and_its_neighbours_live() -> None:
    rows: dict[int, int] = {}

    def answer(plan: pb.StepPlan) -> pb.StepResult | None:
        rows.update({admission.row: admission.sequence_id for admission in plan.admissions})
        return None if any(rows[row] == 2 for row in plan.scheduled.rows) else counting(plan)

    async def case() -> None:
        worker = ScriptedWorker(answer)
        async with running_engine(worker) as (engine, listener, _):
            for number in (1, 2, 3):
                engine.send(spec(number))
            await listener.until(lambda: len(listener.ends) == 3)
            reasons = {number: end.reason for number, end in listener.ends.items()}
            assert reasons == {1: EndReason.LENGTH, 2: EndReason.KILLED_WORKER, 3: EndReason.LENGTH}
            assert [len(listener.tokens[number]) for number in (1, 3)] == [5, 5]
            assert listener.health.count(False) == 4, "three deaths after the start, not more"

    asyncio.run(case())


def test_a_worker_that_no_request_survives_on_is_given_up() -> None:
    async def case() -> None:
        worker = ScriptedWorker(lambda plan: None)
        async with running_engine(worker) as (engine, listener, _):
            for number in range(20):
                engine.send(spec(number))
            await listener.until(lambda: len(listener.ends) == 20)
            reasons = [end.reason for end in listener.ends.values()]
            assert set(reasons) == {EndReason.KILLED_WORKER, EndReason.WORKER_LOST}
            assert reasons.count(EndReason.WORKER_LOST) > reasons.count(EndReason.KILLED_WORKER)
            worker.answer = counting
            engine.send(spec(20))
            await listener.until(lambda: 20 in listener.ends)
            assert listener.ends[20].reason is EndReason.LENGTH

    asyncio.run(case())


def test_refusals_and_cancels() -> None:
    async def case() -> None:
        worker = ScriptedWorker()
        worker.gate.clear()
        async with running_engine(worker) as (engine, listener, _):
            engine.send(spec(1))
            engine.send(spec(1))
            engine.send(spec(2, prompt=200, max_tokens=200))
            await listener.until(lambda: len(listener.rejected) == 2)
            assert listener.rejected[1].kind == "DuplicateSequenceError"
            assert listener.rejected[2].message.startswith("needs 100 blocks, pool 64")
            engine.send(Cancel(sequence_id=1))
            engine.send(Cancel(sequence_id=77))
            worker.gate.set()
            engine.send(spec(3))
            await listener.until(lambda: 3 in listener.ends)
            assert 1 not in listener.ends and 1 not in listener.tokens
            assert core_of(engine).blocks.pool.num_referenced == 0

    asyncio.run(case())


def test_a_worker_with_another_model_is_not_used() -> None:
    async def case() -> None:
        worker = ScriptedWorker()
        worker.gate.clear()
        async with running_engine(worker, grace_s=1.0) as (engine, listener, port):
            engine.send(spec())
            await listener.until(lambda: core_of(engine).num_plans_in_flight == 2)
            await worker.die()
            other = ScriptedWorker(config_digest=b"two")
            await other.start(port)
            await listener.until(lambda: 1 in listener.ends)
            assert listener.ends[1].reason is EndReason.WORKER_LOST
            assert not other.opens
            await other.die()

    asyncio.run(case())
