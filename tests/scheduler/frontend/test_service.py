"""The services over a real gRPC connection: what streams carry, and how they end."""

from __future__ import annotations

import asyncio

import grpc
import pytest
import structlog

from octavo.serving.v1 import admin_pb2, generation_pb2
from scheduler.core.result import EndReason
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.tokenizer import Tokenizer
from tests.oracle.tokenizer import EOS, byte_ids
from tests.scheduler.frontend.calls import until
from tests.scheduler.frontend.served import Run, Service, ids, runner, stream_failure


@pytest.fixture
def run(byte_tokenizer: Tokenizer, model: ModelInfo) -> Run:
    return runner(byte_tokenizer, model)


def test_a_stream_from_start_to_end(run: Run) -> None:
    async def test(service: Service) -> None:
        request = ids(1, 2, logprobs=1, seed=5)
        request.request_id = "mine"
        call = service.generation.Generate(request)
        sequence_id = await service.added(1)
        engine = service.engine
        assert engine.added[0].seed == 5
        assert engine.added[0].deadline_ns is None
        engine.start(sequence_id, cached_tokens=1)
        engine.update(
            sequence_ids=(sequence_id,),
            token_ids=(97,),
            logprobs=(-0.25,),
            top_tokens=((97,),),
            top_logprobs=((-0.25,),),
        )
        first = await call.read()
        assert first.request_id == "mine"
        (delta,) = first.deltas
        assert (delta.index, delta.text, list(delta.token_ids)) == (0, "a", [97])
        assert delta.finish_reason == generation_pb2.FINISH_REASON_UNSPECIFIED
        assert not first.HasField("usage")
        (logprob,) = delta.logprobs
        assert (logprob.token_id, logprob.logprob, logprob.top[0].token_id) == (97, -0.25, 97)
        engine.end(sequence_id, EndReason.STOP, last=EOS, stop_token_id=EOS, count=2)
        last = await call.read()
        assert last.deltas[0].finish_reason == generation_pb2.FINISH_REASON_STOP
        assert last.deltas[0].stop_token_id == EOS
        assert (last.usage.prompt_tokens, last.usage.cached_tokens, last.usage.completion_tokens) == (2, 1, 2)
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK

    run(test)


def test_sequences_that_are_ready_together_travel_together(run: Run) -> None:
    async def test(service: Service) -> None:
        call = service.generation.Generate(ids(1, 2, n=3))
        await service.added(3)
        sequence_ids = [spec.sequence_id for spec in service.engine.added]
        service.engine.update(sequence_ids=(*reversed(sequence_ids),), token_ids=tuple(b"cba"))
        first = await call.read()
        assert [(delta.index, delta.text) for delta in first.deltas] == [(0, "a"), (1, "b"), (2, "c")]
        service.engine.end(sequence_ids[1], EndReason.STOP, last=EOS, stop_token_id=EOS, count=2)
        second = await call.read()
        (delta,) = second.deltas
        assert (delta.index, delta.finish_reason) == (1, generation_pb2.FINISH_REASON_STOP)
        assert not second.HasField("usage")
        for index in (0, 2):
            service.engine.end(sequence_ids[index], EndReason.LENGTH, last=98, count=2)
        last = await call.read()
        assert [(delta.index, delta.finish_reason) for delta in last.deltas] == [
            (0, generation_pb2.FINISH_REASON_LENGTH),
            (2, generation_pb2.FINISH_REASON_LENGTH),
        ]
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 6)
        assert await call.read() is grpc.aio.EOF
        await until(lambda: len(lines) == 2)

    with structlog.testing.capture_logs() as lines:
        run(test)
    assert (len(lines[0]["sequence_ids"]), lines[1]["reason"], lines[1]["tokens"]) == (3, "LENGTH, STOP", 6)


def test_cancelling_the_call_cancels_every_sequence(run: Run) -> None:
    async def test(service: Service) -> None:
        call = service.generation.Generate(ids(1, n=3))
        await service.added(3)
        sequence_ids = [spec.sequence_id for spec in service.engine.added]
        service.engine.end(sequence_ids[1], EndReason.LENGTH, last=97, count=1)
        await call.read()
        call.cancel()
        await until(lambda: service.engine.cancelled == [sequence_ids[0], sequence_ids[2]])
        assert service.frontend.num_live == 0

    run(test)


def test_chat_and_text_prompts_are_tokenised(run: Run) -> None:
    async def test(service: Service) -> None:
        message = generation_pb2.ChatMessage(role="user", content="hé")
        chat = service.generation.Generate(
            generation_pb2.GenerateRequest(chat=generation_pb2.ChatPrompt(messages=[message]))
        )
        await service.added(1)
        text = service.generation.Generate(generation_pb2.GenerateRequest(text="hé"))
        await service.added(2)
        bare = generation_pb2.ChatPrompt(messages=[message], add_generation_prompt=False)
        no_turn = service.generation.Generate(generation_pb2.GenerateRequest(chat=bare))
        await service.added(3)
        prompts = [list(spec.prompt) for spec in service.engine.added]
        assert prompts[0] == [*byte_ids("user: hé"), 258, *byte_ids("assistant: ")]
        assert prompts[1] == byte_ids("hé")
        assert prompts[2] == [*byte_ids("user: hé"), 258]
        for call in (chat, text, no_turn):
            call.cancel()

    run(test)


def test_cancelling_the_call_cancels_the_sequence(run: Run) -> None:
    async def test(service: Service) -> None:
        call = service.generation.Generate(ids(1))
        sequence_id = await service.added(1)
        service.engine.tokens(sequence_id, b"a")
        await call.read()
        call.cancel()
        await until(lambda: service.engine.cancelled == [sequence_id])
        assert service.frontend.num_live == 0

    run(test)


def test_a_caller_that_stops_reading_can_still_be_cancelled(run: Run) -> None:
    async def test(service: Service) -> None:
        call = service.generation.Generate(ids(1))
        sequence_id = await service.added(1)
        for _ in range(50):  # more than the connection takes without a reader, so that the server's write waits
            service.engine.tokens(sequence_id, b"abcdefghij" * 500)
            await asyncio.sleep(0)
        call.cancel()
        await until(lambda: service.engine.cancelled == [sequence_id])
        assert service.frontend.num_live == 0

    run(test)


def test_one_log_line_at_each_end_without_the_prompt(run: Run) -> None:
    async def test(service: Service) -> None:
        call = service.generation.Generate(generation_pb2.GenerateRequest(text="secret", request_id="mine"))
        sequence_id = await service.added(1)
        service.engine.end(sequence_id, EndReason.LENGTH, last=97, count=1)
        async for _ in call:
            pass
        await until(lambda: len(lines) == 2)

    with structlog.testing.capture_logs() as lines:
        run(test)
    begin, end = lines
    assert {line["request_id"] for line in lines} == {"mine"}
    assert (begin["event"], begin["prompt_tokens"]) == ("request accepted", 6)
    assert (end["event"], end["reason"], end["tokens"]) == ("request ended", "LENGTH", 1)
    assert "secret" not in str(lines)


def test_a_bad_end_and_a_refusal_are_logged_once_with_their_reason(run: Run) -> None:
    async def test(service: Service) -> None:
        call = service.generation.Generate(ids(1))
        sequence_id = await service.added(1)
        service.engine.end(sequence_id, EndReason.NON_FINITE, count=0)
        await stream_failure(call)
        await stream_failure(service.generation.Generate(ids(999)))
        await until(lambda: len(lines) == 3)

    with structlog.testing.capture_logs() as lines:
        run(test)
    assert [(line["event"], line.get("reason")) for line in lines] == [
        ("request accepted", None),
        ("request ended", "NON_FINITE_LOGITS"),
        ("request refused", "INVALID_REQUEST"),
    ]
    assert all(line["request_id"] for line in lines)  # made by the server where the caller gave none


def test_model_info_and_stats(run: Run) -> None:
    async def test(service: Service) -> None:
        info = await service.generation.GetModelInfo(generation_pb2.GetModelInfoRequest())
        assert (info.served_model_name, info.max_model_len, info.logits_width) == ("bytes", 64, 320)
        assert list(info.eos_token_ids) == [257, 258]
        assert info.has_chat_template
        stats = await service.admin.GetStats(admin_pb2.GetStatsRequest())
        assert (stats.queues.waiting, stats.blocks.cached, stats.counters.kept_tokens) == (2, 2, 9)
        assert (stats.worker.address, stats.worker.connected, stats.worker.restarts) == ("127.0.0.1:1", True, 2)

    run(test)
