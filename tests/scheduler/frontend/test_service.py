"""The services over a real gRPC connection, with an engine that is driven by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.serving.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, generation_pb2_grpc, sampling_pb2
from scheduler.core.config import CoreConfig
from scheduler.core.result import EndReason
from scheduler.core.scheduler import Scheduler
from scheduler.frontend.admin.service import AdminServicer
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.malformed import MalformedRequestInterceptor
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.service import GenerationServicer
from scheduler.frontend.stats import BlockStats, CounterStats, QueueStats, Stats, WorkerStats
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.inspector import InspectedWorker, Inspector
from scheduler.messages import Rejected
from scheduler.step_feed import StepFeed
from tests.oracle.tokenizer import EOS, byte_ids
from tests.scheduler.frontend.engine_script import EngineScript

STATS = Stats(
    queues=QueueStats(running=1, waiting=2),
    blocks=BlockStats(block_size=16, total=8, free=5, cached=2, referenced=1),
    counters=CounterStats(steps=3, computed_tokens=10, kept_tokens=9, wasted_tokens=1),
    workers=(
        WorkerStats(
            address="127.0.0.1:1",
            connected=True,
            epoch=4,
            restarts=2,
            queues=QueueStats(running=1, waiting=2),
            blocks=BlockStats(block_size=16, total=8, free=5, cached=2, referenced=1),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server on loopback and its stubs."""

    engine: EngineScript
    frontend: Frontend
    generation: Any
    admin: Any
    channel: Any

    async def added(self, count: int) -> int:
        """Waits for the engine to get its count-th sequence, and gives its id."""
        await until(lambda: len(self.engine.added) >= count)
        return self.engine.added[count - 1].sequence_id


@asynccontextmanager
async def serve(tokenizer: Tokenizer, model: ModelInfo) -> AsyncIterator[Service]:
    engine = EngineScript()
    frontend = Frontend(tokenizer=tokenizer, model=model, send=engine.send)
    engine.deliver = frontend.deliver
    server = grpc.aio.server(interceptors=(MalformedRequestInterceptor(),))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(GenerationServicer(frontend), server)
    core = Scheduler(CoreConfig(num_blocks=8))
    worker = InspectedWorker(number=1, address="127.0.0.1:1", core=core, connected=True)
    inspector = Inspector(lambda: [worker], frontend.requests)
    admin = AdminServicer(lambda: STATS, inspector, frontend, StepFeed())
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Service(
                engine=engine,
                frontend=frontend,
                generation=generation_pb2_grpc.GenerationServiceStub(channel),
                admin=admin_pb2_grpc.AdminServiceStub(channel),
                channel=channel,
            )
    finally:
        await server.stop(None)


@pytest.fixture
def run(byte_tokenizer: Tokenizer, model: ModelInfo) -> Callable[[Callable[[Service], Awaitable[None]]], None]:
    """Runs a test against a server of its own."""

    def runner(test: Callable[[Service], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with serve(byte_tokenizer, model) as service:
                await asyncio.wait_for(test(service), 60)

        asyncio.run(whole())

    return runner


Run = Callable[[Callable[[Service], Awaitable[None]]], None]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the conditions are plain values, which signal nothing
        await asyncio.sleep(0.005)


def ids(*token_ids: int, **sampling: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=token_ids), sampling_params=sampling_pb2.SamplingParams(**sampling)
    )


async def failure(call: Any, texts: list[str] | None = None) -> tuple[grpc.aio.AioRpcError, dict[str, Any]]:
    """The error of a call and its details by the name of their type; texts gets the deltas' before it."""

    async def read() -> None:
        async for response in call:
            if texts is not None:
                texts.append(response.deltas[0].text)

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read()
    details: dict[str, Any] = {}
    status = rpc_status.from_call(raised.value)  # type: ignore[arg-type]
    if status is not None:
        for box in status.details:
            detail = getattr(error_details_pb2, box.TypeName().rsplit(".", 1)[-1])()
            assert box.Unpack(detail)
            details[type(detail).__name__] = detail
    return raised.value, details


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


def test_all_violations_come_in_one_bad_request(run: Run) -> None:
    async def test(service: Service) -> None:
        request = ids(1, 999, temperature=3.0, top_p=0.0, max_tokens=0, n=0, logit_bias={5: 101}, stop=[""])
        request.tenant = "t" * 300
        error, details = await failure(service.generation.Generate(request))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "sampling_params.top_p: is 0.0, must be in (0, 1]" in str(error.details())
        fields = [violation.field for violation in details["BadRequest"].field_violations]
        names = ["temperature", "top_p", "max_tokens", "n", "logit_bias", "stop[0]"]
        assert fields == ["tenant", *(f"sampling_params.{name}" for name in names), "token_ids.ids"]
        assert (details["ErrorInfo"].domain, details["ErrorInfo"].reason) == ("octavo", "INVALID_REQUEST")
        assert "RetryInfo" not in details

    run(test)


def test_unset_differs_from_zero(run: Run) -> None:
    async def test(service: Service) -> None:
        error, _ = await failure(service.generation.Generate(ids(1, repetition_penalty=0)))
        assert "repetition_penalty: is 0.0, must be in (0, 2]" in str(error.details())
        error, _ = await failure(service.generation.Generate(ids(1, logit_bias={7: -100.5})))
        assert "logit_bias: has -100.5 for token 7, must be in [-100, 100]" in str(error.details())
        call = service.generation.Generate(ids(1, temperature=0.0, min_tokens=0))
        await service.added(1)
        assert service.engine.added[0].sampling.temperature == 0.0
        assert service.engine.added[0].sampling.num_logprobs is None
        call.cancel()

    run(test)


def test_fields_of_other_versions_are_refused_at_any_depth(run: Run) -> None:
    async def test(service: Service) -> None:
        unknown = b"\xf8\x3f\x01"  # field 1023, varint 1
        message = b"\x0a\x04user\x12\x01a" + unknown
        prompt = b"\x0a" + bytes([len(message)]) + message
        data = b"\x1a" + bytes([len(prompt)]) + prompt + b"\x2a\x03" + unknown + unknown
        request = generation_pb2.GenerateRequest.FromString(data)
        assert request.chat.messages[0].content == "a"
        error, details = await failure(service.generation.Generate(request))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        fields = [violation.field for violation in details["BadRequest"].field_violations]
        assert fields == ["#1023", "chat.messages.#1023", "sampling_params.#1023"]

    run(test)


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("serving.v1.GenerationService/Generate", b"\xff\xff\xff"),
        ("serving.v1.GenerationService/Generate", b"\x12\x02\xc3\x28"),  # a text that is not UTF-8
        ("serving.v1.GenerationService/GetModelInfo", b"\x0a\x05a"),  # cut short
        ("serving.v1.AdminService/ProbePrefix", b"\xff"),
    ],
)
def test_bytes_that_are_no_message_are_the_callers_fault(method: str, data: bytes, run: Run) -> None:
    async def test(service: Service) -> None:
        error, details = await failure(service.channel.unary_stream(f"/octavo.{method}")(data))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(error.details()).startswith(f"request: the bytes are not a message that /octavo.{method} takes: ")
        assert details["ErrorInfo"].reason == "MALFORMED_REQUEST"

    run(test)


def test_an_unknown_method_is_unimplemented(run: Run) -> None:
    async def test(service: Service) -> None:
        error, _ = await failure(service.channel.unary_stream("/octavo.serving.v1.GenerationService/Other")(b""))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED

    run(test)


def test_what_converting_a_request_takes_is_bounded(run: Run) -> None:
    async def test(service: Service) -> None:
        message = generation_pb2.ChatMessage(role="user")
        chat = generation_pb2.ChatPrompt(messages=[message] * 16385)
        error, details = await failure(service.generation.Generate(generation_pb2.GenerateRequest(chat=chat)))
        assert error.details() == "chat.messages: has 16385 messages, must have at most 16384"
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        request = generation_pb2.GenerateRequest.FromString(b"\xf8\x3f\x01" * 1000)  # field 1023, a thousand times
        error, details = await failure(service.generation.Generate(request))
        fields = [violation.field for violation in details["BadRequest"].field_violations]
        assert fields == ["#1023"] * 8 + ["prompt"]

    run(test)


def test_a_status_fits_into_headers_whatever_was_sent(run: Run) -> None:
    async def test(service: Service) -> None:
        request = ids(1)
        request.model = "é" * 100_000
        error, details = await failure(service.generation.Generate(request))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert str(error.details()).endswith("...")
        assert details["ErrorInfo"].reason == "MODEL_NOT_SERVED"

    run(test)


def test_a_live_request_id_already_exists(run: Run) -> None:
    async def test(service: Service) -> None:
        request = ids(1)
        request.request_id = "same"
        first = service.generation.Generate(request)
        await service.added(1)
        error, details = await failure(service.generation.Generate(request))
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
        assert details["ErrorInfo"].reason == "REQUEST_ID_IN_USE"
        first.cancel()

    run(test)


def test_a_refusal_of_the_core_has_its_numbers(run: Run) -> None:
    async def test(service: Service) -> None:
        for kind, code, field in (
            ("NeverFitsError", grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
            ("QueueFullError", grpc.StatusCode.RESOURCE_EXHAUSTED, "request"),
        ):
            call = service.generation.Generate(ids(1))
            sequence_id = await service.added(len(service.engine.added) + 1)
            refusal = Rejected(
                sequence_id=sequence_id, kind=kind, message="needs 13, has 12", field=field, value="13", limit="12"
            )
            service.engine.update(rejected=(refusal,))
            error, details = await failure(call)
            assert (error.code(), error.details()) == (code, "needs 13, has 12")
            assert details["ErrorInfo"].metadata["limit"] == "12"
            assert ("BadRequest" in details) is (kind == "NeverFitsError")
            assert ("RetryInfo" in details) is (kind == "QueueFullError")

    run(test)


def test_a_lost_worker_is_unavailable_with_retry_after_the_tokens_so_far(run: Run) -> None:
    async def test(service: Service) -> None:
        call = service.generation.Generate(ids(1))
        sequence_id = await service.added(1)
        service.engine.tokens(sequence_id, b"ab")
        service.engine.end(sequence_id, EndReason.WORKER_LOST, count=2)
        texts: list[str] = []
        error, details = await failure(call, texts)
        assert texts == ["ab"]
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert details["ErrorInfo"].reason == "WORKER_LOST"
        assert details["RetryInfo"].retry_delay.seconds == 1

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


def test_the_deadline_reaches_the_engine_and_ends_the_call(run: Run) -> None:
    async def test(service: Service) -> None:
        before = time.monotonic_ns()
        call = service.generation.Generate(ids(1), timeout=0.3)
        sequence_id = await service.added(1)
        deadline_ns = service.engine.added[0].deadline_ns
        assert deadline_ns is not None
        assert before < deadline_ns <= time.monotonic_ns() + 300_000_000
        error, _ = await failure(call)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: service.engine.cancelled == [sequence_id])

    run(test)


def test_a_draining_server_is_unavailable_with_retry(run: Run) -> None:
    async def test(service: Service) -> None:
        live = service.generation.Generate(ids(1))
        sequence_id = await service.added(1)
        service.frontend.drain()
        error, details = await failure(service.generation.Generate(ids(1)))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "RetryInfo" in details
        service.engine.end(sequence_id, EndReason.LENGTH, last=97, count=1)
        assert (await live.read()).deltas[0].text == "a"

    run(test)


def test_a_defect_is_internal_and_hides_its_trace(run: Run) -> None:
    async def test(service: Service) -> None:
        call = service.generation.Generate(ids(1))
        sequence_id = await service.added(1)
        service.engine.tokens(sequence_id, [-(10**9)])  # an engine that breaks its contract
        error, details = await failure(call)
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "internal error; the server's log has its trace"
        assert details["ErrorInfo"].reason == "INTERNAL"
        assert service.engine.cancelled == [sequence_id]

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
        await failure(call)
        await failure(service.generation.Generate(ids(999)))
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
