"""How the services refuse and fail calls, over a real gRPC connection."""

from __future__ import annotations

import time

import grpc
import pytest

from octavo.serving.v1 import generation_pb2
from scheduler.core.result import EndReason
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.messages import Rejected
from tests.scheduler.frontend.calls import until
from tests.scheduler.frontend.served import Run, Service, ids, runner, stream_failure


@pytest.fixture
def run(byte_tokenizer: Tokenizer, model: ModelInfo) -> Run:
    return runner(byte_tokenizer, model)


def test_all_violations_come_in_one_bad_request(run: Run) -> None:
    async def test(service: Service) -> None:
        request = ids(1, 999, temperature=3.0, top_p=0.0, max_tokens=0, n=0, logit_bias={5: 101}, stop=[""])
        request.tenant = "t" * 300
        error, details = await stream_failure(service.generation.Generate(request))
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
        error, _ = await stream_failure(service.generation.Generate(ids(1, repetition_penalty=0)))
        assert "repetition_penalty: is 0.0, must be in (0, 2]" in str(error.details())
        error, _ = await stream_failure(service.generation.Generate(ids(1, logit_bias={7: -100.5})))
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
        error, details = await stream_failure(service.generation.Generate(request))
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
        error, details = await stream_failure(service.channel.unary_stream(f"/octavo.{method}")(data))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(error.details()).startswith(f"request: the bytes are not a message that /octavo.{method} takes: ")
        assert details["ErrorInfo"].reason == "MALFORMED_REQUEST"

    run(test)


def test_an_unknown_method_is_unimplemented(run: Run) -> None:
    async def test(service: Service) -> None:
        error, _ = await stream_failure(service.channel.unary_stream("/octavo.serving.v1.GenerationService/Other")(b""))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED

    run(test)


def test_what_converting_a_request_takes_is_bounded(run: Run) -> None:
    async def test(service: Service) -> None:
        message = generation_pb2.ChatMessage(role="user")
        chat = generation_pb2.ChatPrompt(messages=[message] * 16385)
        error, details = await stream_failure(service.generation.Generate(generation_pb2.GenerateRequest(chat=chat)))
        assert error.details() == "chat.messages: has 16385 messages, must have at most 16384"
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        request = generation_pb2.GenerateRequest.FromString(b"\xf8\x3f\x01" * 1000)  # field 1023, a thousand times
        error, details = await stream_failure(service.generation.Generate(request))
        fields = [violation.field for violation in details["BadRequest"].field_violations]
        assert fields == ["#1023"] * 8 + ["prompt"]

    run(test)


def test_a_status_fits_into_headers_whatever_was_sent(run: Run) -> None:
    async def test(service: Service) -> None:
        request = ids(1)
        request.model = "é" * 100_000
        error, details = await stream_failure(service.generation.Generate(request))
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
        error, details = await stream_failure(service.generation.Generate(request))
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
            error, details = await stream_failure(call)
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
        error, details = await stream_failure(call, texts)
        assert texts == ["ab"]
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert details["ErrorInfo"].reason == "WORKER_LOST"
        assert details["RetryInfo"].retry_delay.seconds == 1

    run(test)


def test_the_deadline_reaches_the_engine_and_ends_the_call(run: Run) -> None:
    async def test(service: Service) -> None:
        before = time.monotonic_ns()
        call = service.generation.Generate(ids(1), timeout=0.3)
        sequence_id = await service.added(1)
        deadline_ns = service.engine.added[0].deadline_ns
        assert deadline_ns is not None
        assert before < deadline_ns <= time.monotonic_ns() + 300_000_000
        error, _ = await stream_failure(call)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: service.engine.cancelled == [sequence_id])

    run(test)


def test_a_draining_server_is_unavailable_with_retry(run: Run) -> None:
    async def test(service: Service) -> None:
        live = service.generation.Generate(ids(1))
        sequence_id = await service.added(1)
        service.frontend.drain()
        error, details = await stream_failure(service.generation.Generate(ids(1)))
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
        error, details = await stream_failure(call)
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "internal error; the server's log has its trace"
        assert details["ErrorInfo"].reason == "INTERNAL"
        assert service.engine.cancelled == [sequence_id]

    run(test)
