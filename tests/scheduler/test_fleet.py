"""Several workers, hung workers, workers that come and go: the engine over real gRPC against scripted workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from octavo.worker.v1alpha1 import worker_pb2 as pb
from scheduler.core.result import EndReason
from scheduler.engine import Engine
from scheduler.step_timeout import FIRST_STEP_FACTOR, StepTimeout, Watchdog
from tests.scheduler.running_engine import Listener, core_of, running_engine, spec
from tests.scheduler.scripted_worker import ScriptedWorker, counting

QUICK = StepTimeout(base_s=0.2, per_token_s=0.001)


def admitted(worker: ScriptedWorker) -> list[int]:
    """Sequences that a worker was given, in order."""
    return [admission.sequence_id for plan in worker.plans for admission in plan.admissions]


def killed_by(*sequence_ids: int):  # type: ignore[no-untyped-def]
    """An answer that breaks the stream of any plan that computes one of these."""
    rows: dict[int, int] = {}

    def answer(plan: pb.StepPlan) -> pb.StepResult | None:
        for row in plan.released_rows:
            rows.pop(row, None)
        rows.update({admission.row: admission.sequence_id for admission in plan.admissions})
        return None if any(rows[row] in sequence_ids for row in plan.scheduled.rows) else counting(plan)

    return answer


def prompts() -> Iterator[list[int]]:
    """Prompts that share no prefix."""
    for first in range(100, 1000, 10):
        yield [first] * 6


def all_length(listener: Listener, *sequence_ids: int, tokens: int) -> bool:
    """Whether these have ended by their length, with so many tokens each."""
    return all(
        listener.ends[number].reason is EndReason.LENGTH and len(listener.tokens[number]) == tokens
        for number in sequence_ids
    )


# -- hung workers ------------------------------------------------------------------------------------------------------


def test_the_budget_of_a_step_grows_with_its_tokens_and_begins_when_its_turn_comes() -> None:
    watchdog = Watchdog(StepTimeout(base_s=1, per_token_s=0.5))
    second = 1_000_000_000
    assert watchdog.deadline_ns is None
    watchdog.sent(2, 10 * second)
    watchdog.sent(4, 11 * second)
    assert watchdog.deadline_ns == (10 + FIRST_STEP_FACTOR * 2) * second, "the first of a session may take longer"
    watchdog.settled(13 * second)
    assert watchdog.deadline_ns == (13 + 3) * second
    watchdog.pardon(5 * second)
    assert watchdog.deadline_ns == (13 + 3 + 5) * second
    watchdog.settled(20 * second)
    assert watchdog.deadline_ns is None


def test_a_hung_worker_is_left_and_what_it_answers_later_is_dropped() -> None:
    async def case() -> None:
        hung, other = ScriptedWorker(), ScriptedWorker()
        async with running_engine(hung, other, step_timeout=QUICK) as (engine, listener, port):
            engine.send(spec(1, max_tokens=40))
            await listener.until(lambda: len(listener.tokens.get(1, ())) >= 3)
            hung.gate.clear()
            await listener.until(lambda: 1 in listener.ends)
            assert all_length(listener, 1, tokens=40)
            assert admitted(hung) == [1] == admitted(other)
            before = len(listener.tokens[1])
            (readmission,) = other.plans[0].admissions
            delivered = listener.tokens[1][: readmission.output_index]
            assert list(readmission.token_ids) == [*range(6), *delivered]
            assert listener.health == [False, True], "the other one serves all the time"
            assert (f"127.0.0.1:{port}", False) in listener.workers[2:]
            assert next(iter(engine.fleet)).num_hangs == 1
            hung.gate.set()  # it answers what it was asked long ago
            await listener.until(lambda: listener.workers[-1] == (f"127.0.0.1:{port}", True))
            engine.send(spec(2, prompt=[7] * 6))
            await listener.until(lambda: 2 in listener.ends)
            assert len(listener.tokens[1]) == before

    asyncio.run(case())


def test_the_only_worker_hangs_and_comes_back() -> None:
    async def case() -> None:
        worker = ScriptedWorker()
        async with running_engine(worker, step_timeout=QUICK) as (engine, listener, _):
            engine.send(spec(1, max_tokens=30))
            await listener.until(lambda: len(listener.tokens.get(1, ())) >= 3)
            worker.gate.clear()
            await listener.until(lambda: listener.health == [False, True, False])
            assert "is overdue: no result within --step-timeout 0.2 s" in await why(engine)
            worker.gate.set()
            await listener.until(lambda: 1 in listener.ends)
            assert all_length(listener, 1, tokens=30)

    asyncio.run(case())


async def why(engine: Engine) -> str:
    async with asyncio.timeout(20):
        while "overdue" not in engine.why_not_connected:  # noqa: ASYNC110 - a plain value, which signals nothing
            await asyncio.sleep(0.005)
    return engine.why_not_connected


# -- several workers ---------------------------------------------------------------------------------------------------


def test_requests_are_shared_out_and_a_lost_worker_s_go_on_at_the_other() -> None:
    async def case() -> None:
        workers = [ScriptedWorker(), ScriptedWorker()]
        for worker in workers:
            worker.gate.clear()
        async with running_engine(*workers) as (engine, listener, _):
            for number, prompt in zip(range(1, 7), prompts(), strict=False):
                engine.send(spec(number, prompt=prompt, max_tokens=30))
            await listener.until(lambda: len(admitted(workers[0]) + admitted(workers[1])) == 6)
            assert [len(admitted(worker)) for worker in workers] == [3, 3]
            moved = admitted(workers[0])
            await workers[0].die()
            workers[1].gate.set()
            await listener.until(lambda: len(listener.ends) == 6)
            assert all_length(listener, *range(1, 7), tokens=30)
            assert set(moved) <= set(admitted(workers[1]))
            assert core_of(engine).num_waiting == core_of(engine, 1).blocks.pool.num_referenced == 0

    asyncio.run(case())


def test_a_prompt_goes_to_the_worker_that_has_its_prefix() -> None:
    async def case() -> None:
        workers = [ScriptedWorker(), ScriptedWorker()]
        async with running_engine(*workers) as (engine, listener, _):
            long = [list(range(start, start + 40)) for start in (0, 100)]
            for number, prompt in enumerate(long, 1):
                engine.send(spec(number, prompt=prompt))
            await listener.until(lambda: len(listener.ends) == 2)
            first_of = [admitted(worker)[0] for worker in workers]
            assert sorted(first_of) == [1, 2]
            for number, prompt in enumerate((long[1], long[0], long[1]), 3):
                engine.send(spec(number, prompt=[*prompt, 7]))
                await listener.until(lambda number=number: number in listener.ends)
            placed = {number: index for index, worker in enumerate(workers) for number in admitted(worker)}
            assert placed[3] == placed[5] == placed[2]
            assert placed[4] == placed[1]
            hits = [a.num_computed_tokens for worker in workers for plan in worker.plans for a in plan.admissions]
            assert sorted(hits) == [0, 0, 40, 40, 40]

    asyncio.run(case())


@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_killer_costs_three_deaths_and_innocents_live(num_workers: int) -> None:
    async def case() -> None:
        workers = [ScriptedWorker(killed_by(4)) for _ in range(num_workers)]
        async with running_engine(*workers) as (engine, listener, _):
            for number, prompt in zip(range(1, 13), prompts(), strict=False):
                engine.send(spec(number, prompt=prompt, max_tokens=60))
            await listener.until(lambda: len(listener.ends) == 12)
            assert listener.ends[4].reason is EndReason.KILLED_WORKER
            assert all_length(listener, *(number for number in range(1, 13) if number != 4), tokens=60)
            assert sum(lane.num_losses for lane in engine.fleet) == 3

    asyncio.run(case())


def test_a_worker_on_which_nothing_survives_costs_no_request_while_another_serves() -> None:
    async def case() -> None:
        broken, sound = ScriptedWorker(lambda plan: None), ScriptedWorker()
        async with running_engine(broken, sound) as (engine, listener, _):
            for number, prompt in zip(range(1, 41), prompts(), strict=False):
                engine.send(spec(number, prompt=prompt))
                await listener.until(lambda number=number: len(listener.ends) >= number - 4)
            await listener.until(lambda: len(listener.ends) == 40)
            assert all_length(listener, *range(1, 41), tokens=5)
            assert admitted(broken), "it was tried"

    asyncio.run(case())


def test_workers_join_and_take_what_waits_and_leave_when_they_are_done() -> None:
    async def case() -> None:
        first, second = ScriptedWorker(), ScriptedWorker()
        first.gate.clear()
        async with running_engine(first) as (engine, listener, port):
            for number, prompt in zip(range(1, 13), prompts(), strict=False):  # 8 rows, so that 4 wait
                engine.send(spec(number, prompt=prompt, max_tokens=20))
            await listener.until(lambda: (core_of(engine).num_running, core_of(engine).num_waiting) == (8, 4))
            second_port = await second.start()
            engine.join(f"127.0.0.1:{second_port}")
            await listener.until(lambda: len(listener.ends) == 4)
            assert sorted(admitted(second)) == [9, 10, 11, 12]
            for coming_back in (True, False):
                engine.leave(f"127.0.0.1:{port}")
                if coming_back:
                    engine.join(f"127.0.0.1:{port}")
            engine.send(spec(13, max_tokens=20))
            await listener.until(lambda: 13 in listener.ends)
            assert 13 in admitted(second)
            first.gate.set()
            await listener.until(lambda: len(listener.ends) == 13)
            assert all_length(listener, *range(1, 14), tokens=20)
            await listener.until(lambda: (f"127.0.0.1:{port}", None) in listener.workers)
            assert [lane.address for lane in engine.fleet] == [f"127.0.0.1:{second_port}"]
            await second.die()

    asyncio.run(case())


def test_when_all_have_left_requests_wait_for_the_next_one() -> None:
    async def case() -> None:
        first, second = ScriptedWorker(), ScriptedWorker()
        async with running_engine(first) as (engine, listener, port):
            engine.send(spec(1))
            await listener.until(lambda: 1 in listener.ends)
            engine.leave(f"127.0.0.1:{port}")
            await listener.until(lambda: listener.health[-1] is False)
            await first.die()
            engine.send(spec(2))
            second_port = await second.start()
            engine.join(f"127.0.0.1:{second_port}")
            await listener.until(lambda: 2 in listener.ends)
            assert all_length(listener, 1, 2, tokens=5)
            assert admitted(second) == [2]
            await second.die()

    asyncio.run(case())


def test_an_id_that_is_live_at_another_worker_is_refused() -> None:
    async def case() -> None:
        workers = [ScriptedWorker(), ScriptedWorker()]
        for worker in workers:
            worker.gate.clear()
        async with running_engine(*workers) as (engine, listener, _):
            engine.send(spec(1))
            engine.send(spec(2))
            engine.send(spec(1))
            await listener.until(lambda: 1 in listener.rejected)
            assert listener.rejected[1].kind == "DuplicateSequenceError"

    asyncio.run(case())
