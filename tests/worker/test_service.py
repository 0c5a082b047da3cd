"""The step plane over real gRPC: sessions, plans in flight, takeovers, broken plans, failing steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from octavo.worker.v1alpha1 import worker_pb2 as pb
from tests.worker.conftest import POISON, TinyModel
from tests.worker.plans import admission, step
from tests.worker.worker_client import InProcessWorker, Stream, serving
from worker.step import PROTOCOL_VERSION

PROMPT = [5, 17, 99, 3, 42, 128, 7]
BLOCKS = range(8)


def run(model: Path, scenario: Callable[[InProcessWorker], Awaitable[None]], logits_width: int | None = None) -> None:
    async def main() -> None:
        async with serving(model, logits_width) as worker:
            await scenario(worker)

    asyncio.run(main())


def prefill(step_id: int = 0, row: int = 0, **sampling: float) -> pb.StepPlan:
    sequence = admission(row, PROMPT, BLOCKS, **sampling)
    return step(step_id, [row], [len(PROMPT)], admissions=[sequence])


async def works(stream: Stream) -> None:
    """The session has all its rows to itself."""
    result = await stream.result(prefill())
    assert list(result.num_sampled) == [1]


def test_capacity_describes_the_model(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        capacity = await worker.capacity()
        assert (capacity.protocol_version, capacity.rank, capacity.world_size) == (PROTOCOL_VERSION, 0, 1)
        (group,) = capacity.kv_groups
        assert (group.num_layers, group.block_size, group.window) == (2, 4, 0)
        assert group.bytes_per_block == 2 * 2 * 2 * 4 * 16 * 4  # keys and values, layers, heads, tokens, size, bytes
        assert (capacity.num_device_blocks, capacity.num_host_blocks) == (64, 16)
        assert (capacity.logits_width, capacity.max_model_len) == (256, 512)
        assert (capacity.architecture, capacity.dtype) == ("LlamaForCausalLM", "float32")
        assert len(capacity.config_digest) == len(capacity.weights_digest) == 32

    run(llama.path, scenario)


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_tokens_are_the_references_with_any_number_of_plans_in_flight(llama: TinyModel, in_flight: int) -> None:
    expected = llama.greedy(PROMPT, 12)

    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        plans = [prefill(), *(step(step_id, [0]) for step_id in range(1, 12))]
        results: list[pb.StepResult] = []
        for plan in plans[:in_flight]:
            await stream.send(plan)
        for place in range(len(plans)):
            results.append(await stream.next_result())
            if place + in_flight < len(plans):
                await stream.send(plans[place + in_flight])
        assert [result.step_id for result in results] == list(range(12))
        assert [result.tokens[0] for result in results] == expected
        assert all(result.execute_ns > 0 and result.copy_ns == 0 and not result.flags for result in results)

    run(llama.path, scenario)


def test_rows_chunks_and_copied_blocks_together(llama: TinyModel) -> None:
    expected = llama.greedy(PROMPT, 4)

    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        assert not (await stream.result(step(0, [3], [4], [0], admissions=[admission(3, PROMPT, [9, 8])]))).tokens
        # Row 5 begins with the KV of row 3's first block, copied.
        second = await stream.result(
            step(
                1,
                [5, 3],
                [3, 3],
                copy_on_write=pb.BlockCopies(sources=[9], destinations=[20]),
                admissions=[admission(5, PROMPT, [20, 21], num_computed_tokens=4, num_logprobs=2)],
            )
        )
        assert list(second.tokens) == expected[:1] * 2
        # Row 5 asked for logprobs, row 3 did not.
        assert (list(second.num_top), second.top_tokens[0], second.logprobs[1]) == ([2, 0], expected[0], 0)
        assert second.top_logprobs[0] == second.logprobs[0] < 0
        edits = pb.TableEdits(rows=[3, 5], indices=[2, 2], blocks=[30, 31])
        for place in (1, 2, 3):
            result = await stream.result(step(place + 1, [3, 5], table_edits=edits if place == 1 else None))
            assert list(result.tokens) == [expected[place]] * 2

    run(llama.path, scenario)


def test_draws_depend_on_seed_and_index_alone(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        tokens = [(await stream.result(prefill(temperature=2.0))).tokens[0]]
        for step_id in range(1, 8):
            tokens.append((await stream.result(step(step_id, [0]))).tokens[0])
        # The same sequence again, in another row, from its third token on, as after a preemption.
        again = admission(
            4,
            PROMPT + tokens[:3],
            range(40, 48),
            num_prompt_tokens=len(PROMPT),
            output_index=3,
            temperature=2.0,
        )
        result = await stream.result(step(8, [4], [len(PROMPT) + 3], released_rows=[0], admissions=[again]))
        assert result.tokens[0] == tokens[3]
        for place in range(4, 8):
            assert (await stream.result(step(place + 5, [4]))).tokens[0] == tokens[place]
        other = admission(1, PROMPT, range(50, 58), temperature=2.0, seed=1)
        others = [(await stream.result(step(20, [1], [len(PROMPT)], admissions=[other]))).tokens[0]]
        for place in range(1, 8):
            others.append((await stream.result(step(20 + place, [1]))).tokens[0])
        assert others != tokens

    run(llama.path, scenario)


def test_plans_that_are_sent_together_are_answered_together(llama: TinyModel) -> None:
    expected = llama.greedy(PROMPT, 6)

    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        await stream.send(prefill())
        await stream.send(*(step(step_id, [0]) for step_id in range(1, 4)))
        await stream.send(*(step(step_id, [0]) for step_id in range(4, 6)))
        messages = [(await stream.receive()).results.results for _ in range(3)]
        assert [[result.step_id for result in results] for results in messages] == [[0], [1, 2, 3], [4, 5]]
        assert [result.tokens[0] for results in messages for result in results] == expected

    run(llama.path, scenario)


def test_results_before_a_plan_that_fails_are_not_lost(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        await works(stream)
        await stream.send(step(1, [0]), step(2, [0]), step(3, [3]), step(4, [0]))
        assert [result.step_id for result in (await stream.receive()).results.results] == [1, 2]
        code, details = await stream.end()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith("scheduled.rows: 3 ")
        await works(await worker.open())

    run(llama.path, scenario)


def test_a_message_without_plans_is_refused(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        await stream.send_raw(pb.ExecuteRequest(plans=pb.StepPlans()))
        assert await stream.end() == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "plans: none is not allowed, a message of plans has at least 1",
        )

    run(llama.path, scenario)


def test_a_row_with_non_finite_logits_harms_no_other(poisoned_llama: TinyModel) -> None:
    expected = poisoned_llama.greedy(PROMPT, 3)

    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        sequences = [admission(0, [1, POISON, 2], [10, 11]), admission(1, PROMPT, BLOCKS)]
        await stream.send(step(0, [0, 1], [3, len(PROMPT)], admissions=sequences))
        await stream.send(step(1, [0, 1]))  # was on its way before the failure could be known
        for place in range(2):
            result = await stream.next_result()
            assert list(result.flags) == [pb.ROW_FLAG_NON_FINITE, pb.ROW_FLAG_UNSPECIFIED]
            assert (list(result.num_sampled), list(result.tokens)) == ([0, 1], [expected[place]])
        last = await stream.result(step(2, [1], released_rows=[0]))
        assert (list(last.tokens), list(last.flags)) == ([expected[2]], [])

    run(poisoned_llama.path, scenario)


@pytest.mark.parametrize("epoch", [7, 8], ids=["the same epoch", "a higher epoch"])
def test_the_same_or_a_higher_epoch_takes_over(llama: TinyModel, epoch: int) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        first = await worker.open(group_epoch=7)
        await works(first)
        second = await worker.open(group_epoch=epoch)
        assert await first.end() == (
            grpc.StatusCode.ABORTED,
            f"a stream of epoch {epoch} took over from 7",
        )
        await works(second)

    run(llama.path, scenario)


def test_a_lower_epoch_is_refused_and_harms_nobody(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        live = await worker.open(group_epoch=7)
        late = Stream(worker.stub)
        await late.send(await worker.opening(group_epoch=6))
        assert await late.end() == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "open.group_epoch is 6, a stream of the higher epoch 7 is live",
        )
        await works(live)

    run(llama.path, scenario)


def test_a_stream_that_is_gone_leaves_nothing_behind(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        for _ in range(3):
            stream = await worker.open()
            for plan in (prefill(), step(1, [0]), step(2, [0])):
                await stream.send(plan)
            stream.cancel()
        await works(await worker.open())

    run(llama.path, scenario)


def test_a_half_closed_stream_gets_all_its_results(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        for plan in (prefill(), step(1, [0]), step(2, [0])):
            await stream.send(plan)
        await stream.half_close()
        assert [(await stream.next_result()).step_id for _ in range(3)] == [0, 1, 2]
        assert (await stream.end())[0] is grpc.StatusCode.OK

    run(llama.path, scenario)


BROKEN = {
    "by itself": (step(1, [8]), "scheduled.rows: 8 "),
    "for its rows": (step(1, [3]), "scheduled.rows: 3 "),
    "in its order": (step(0, [0]), "step_id: 0 "),
}


@pytest.mark.parametrize(("plan", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plan_ends_its_stream_only(llama: TinyModel, plan: pb.StepPlan, message: str) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        await works(stream)
        await stream.send(plan)
        code, details = await stream.end()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith(message)
        await works(await worker.open())

    run(llama.path, scenario)


def test_a_second_open_is_a_broken_plan(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        await stream.send(await worker.opening(group_epoch=2))
        code, details = await stream.end()
        assert (code, details.split(",")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, "kind: open is not allowed")

    run(llama.path, scenario)


def test_a_step_that_fails_ends_its_stream_only(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        foreign = admission(0, [1, 300], BLOCKS)  # below the claimed width, past the end of the embeddings
        await stream.send(step(0, [0], [2], admissions=[foreign]))
        await stream.send(step(1, [0]))
        code, details = await stream.end()
        assert code is grpc.StatusCode.INTERNAL
        assert details.startswith("step 0 failed: IndexError")
        await works(await worker.open())

    run(llama.path, scenario, logits_width=1000)


REFUSED_OPENS = {
    "version": ({"protocol_version": 99}, grpc.StatusCode.FAILED_PRECONDITION, "protocol_version is 99"),
    "digest": ({"config_digest": b"\x01"}, grpc.StatusCode.FAILED_PRECONDITION, "config_digest is 01"),
    "blocks": ({"num_device_blocks": 65}, grpc.StatusCode.INVALID_ARGUMENT, "num_device_blocks is 65, must be 1 to 64"),
    "host blocks": (
        {"num_host_blocks": 17},
        grpc.StatusCode.INVALID_ARGUMENT,
        "num_host_blocks is 17, must be 0 to 16",
    ),
    "length": ({"max_model_len": 513}, grpc.StatusCode.INVALID_ARGUMENT, "max_model_len is 513, must be 1 to 512"),
    "rows": ({"num_rows": 0}, grpc.StatusCode.INVALID_ARGUMENT, "num_rows is 0"),
    "budget": ({"max_num_batched_tokens": 0}, grpc.StatusCode.INVALID_ARGUMENT, "max_num_batched_tokens is 0"),
    "many rows": (
        {"num_rows": 101},
        grpc.StatusCode.INVALID_ARGUMENT,
        "open.num_rows is 101, must be 1 to 100, which the worker's --max-num-seqs sets",
    ),
    "large steps": (
        {"max_num_batched_tokens": 257},
        grpc.StatusCode.INVALID_ARGUMENT,
        "max_num_batched_tokens is 257, must be 1 to 256, which the worker's --max-num-batched-tokens sets",
    ),
}


def test_an_open_that_does_not_fit_is_refused_by_name(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        for changes, code, message in REFUSED_OPENS.values():
            stream = Stream(worker.stub)
            await stream.send(await worker.opening(**changes))
            got, details = await stream.end()
            assert (got, message in details) == (code, True), details
        early = Stream(worker.stub)
        await early.send(prefill())
        code, details = await early.end()
        assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "the first message is plans, must be open")
        await works(await worker.open())

    run(llama.path, scenario)


def test_only_memory_that_there_was_before_is_missed(llama: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    misses: list[str] = []

    async def main() -> None:
        async with serving(llama.path, on_out_of_memory=lambda: misses.append("memory")) as worker:
            await worker.open(num_rows=4, max_model_len=100)
            await worker.open(num_rows=2, max_model_len=200)
            with monkeypatch.context() as patch:
                patch.setattr("worker.runner.SequenceTable", exhausted)
                for rows, tokens in ((5, 100), (4, 101), (2, 201), (3, 200)):
                    code, details = await refused(worker, rows, tokens)
                    assert code is grpc.StatusCode.INVALID_ARGUMENT
                    assert f"ask for {rows} rows of {tokens} tokens: no memory" in details
                assert not misses
                await refused(worker, 3, 100)
                assert misses
            await works(await worker.open())

    def exhausted(*_: object) -> None:
        raise MemoryError

    async def refused(worker: InProcessWorker, rows: int, tokens: int) -> tuple[grpc.StatusCode, str]:
        stream = Stream(worker.stub)
        await stream.send(await worker.opening(num_rows=rows, max_model_len=tokens))
        return await stream.end()

    asyncio.run(main())


def test_health_and_reflection_answer_during_a_stream(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        health = health_pb2_grpc.HealthStub(worker.channel)
        for name in ("", "octavo.worker.v1alpha1.WorkerService"):
            response = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert response.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(worker.channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await call.read()
        await call.done_writing()
        names = {service.name for service in listed.list_services_response.service}
        assert {"octavo.worker.v1alpha1.WorkerService", "grpc.health.v1.Health"} <= names
        await works(stream)

    run(llama.path, scenario)


def test_stopping_ends_the_stream_with_unavailable(llama: TinyModel) -> None:
    async def scenario(worker: InProcessWorker) -> None:
        stream = await worker.open()
        await works(stream)
        ending = asyncio.create_task(stream.end())
        assert await worker.server.stop()
        assert await ending == (grpc.StatusCode.UNAVAILABLE, "the worker shuts down")

    run(llama.path, scenario)
