"""A server that speaks the public API and generates nothing: each test scripts what it answers.

It stands for any conforming server, so that the clients are tested against the protocol and not against our front end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import grpc.aio
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from clients import Completion, FinishReason
from octavo.serving.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)

Script = Callable[[Any, Any], AsyncIterator[generation_pb2.GenerateResponse]]


def response(text: str = "", ids: tuple[int, ...] = (), **fields: Any) -> generation_pb2.GenerateResponse:
    """A message with one delta of sequence 0."""
    delta = generation_pb2.SequenceDelta(text=text, token_ids=ids, **fields)
    return generation_pb2.GenerateResponse(request_id="r1", deltas=[delta])


def last_response(**usage: Any) -> generation_pb2.GenerateResponse:
    """The last message of a stream."""
    return generation_pb2.GenerateResponse(request_id="r1", usage=generation_pb2.Usage(**usage))


async def answer(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
    """ "Héy" in three deltas, the second of which has an id and no text yet."""
    top = generation_pb2.TopLogprob(token_id=9, logprob=-0.5)
    yield response("H", (7,), logprobs=[generation_pb2.TokenLogprob(token_id=7, logprob=-1.5, top=[top])])
    yield response("", (8,), logprobs=[generation_pb2.TokenLogprob(token_id=8, logprob=-2.0)])
    yield response("éy", (9, 2), finish_reason=generation_pb2.FINISH_REASON_STOP, stop_token_id=2)
    yield last_response(prompt_tokens=5, cached_tokens=4, completion_tokens=4, queue_seconds=0.25)


def check_completion(completion: Completion) -> None:
    assert completion.text == "Héy"
    assert completion.token_ids == (7, 8, 9, 2)
    assert completion.request_id == "r1"
    assert completion.finish_reason is FinishReason.STOP
    assert completion.stop_token_id == 2
    assert [(entry.token_id, entry.logprob) for entry in completion.logprobs] == [(7, -1.5), (8, -2.0)]
    assert completion.logprobs[0].top[0].token_id == 9
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.cached_tokens) == (5, 4)
    assert completion.usage.queue_seconds == 0.25


async def fail(context: Any, code: grpc.StatusCode, message: str, *details: Any) -> None:
    """Ends the call with a status that carries google.rpc details."""
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    await context.abort_with_status(
        rpc_status.to_status(status_pb2.Status(code=code.value[0], message=message, details=packed))
    )


def bad_request(field: str, description: str) -> error_details_pb2.BadRequest:
    """Names one bad field."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    return error_details_pb2.BadRequest(field_violations=[violation])


class Peer(
    generation_pb2_grpc.GenerationServiceServicer,
    tokenizer_pb2_grpc.TokenizerServiceServicer,
    admin_pb2_grpc.AdminServiceServicer,
    health_pb2_grpc.HealthServicer,
):
    """The server. `script` answers Generate; `requests` are the ones that came.

    requested, cancelled: set when the first has come, and when one was cancelled.
    """

    def __init__(self) -> None:
        self.script: Script
        self.requests: list[Any] = []
        self.requested = threading.Event()
        self.cancelled = threading.Event()
        self.health = health_pb2.HealthCheckResponse.SERVING
        self.model_info = generation_pb2.GetModelInfoResponse(served_model_name="peer")
        self.stats = admin_pb2.GetStatsResponse()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:  # noqa: N802
        self.requests.append(request)
        self.requested.set()
        try:
            async for message in self.script(request, context):
                yield message
        except (asyncio.CancelledError, GeneratorExit):  # the latter while a message is being sent
            self.cancelled.set()
            raise

    async def ScorePrompt(self, request: Any, context: Any) -> generation_pb2.ScorePromptResponse:  # noqa: N802
        self.requested.set()
        await asyncio.Event().wait()  # until the call is cancelled
        return generation_pb2.ScorePromptResponse()

    async def GetModelInfo(self, request: Any, context: Any) -> generation_pb2.GetModelInfoResponse:  # noqa: N802
        return self.model_info

    async def Tokenize(self, request: Any, context: Any) -> tokenizer_pb2.TokenizeResponse:  # noqa: N802
        self.requests.append(request)
        return tokenizer_pb2.TokenizeResponse(
            token_ids=[1, 2], token_bytes=[b"P", b"\xc3"], rendered="<P>", max_model_len=8
        )

    async def CountTokens(self, request: Any, context: Any) -> tokenizer_pb2.CountTokensResponse:  # noqa: N802
        self.requests.append(request)
        return tokenizer_pb2.CountTokensResponse(count=2, max_model_len=8)

    async def Detokenize(self, request: Any, context: Any) -> tokenizer_pb2.DetokenizeResponse:  # noqa: N802
        self.requests.append(request)
        return tokenizer_pb2.DetokenizeResponse(text="Pé")

    async def GetStats(self, request: Any, context: Any) -> admin_pb2.GetStatsResponse:  # noqa: N802
        return self.stats

    async def Check(self, request: Any, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802
        return health_pb2.HealthCheckResponse(status=self.health)


class RunningPeer:
    """A Peer on a loopback port, in a thread with an event loop of its own: the clients' loops stay theirs."""

    def __init__(self) -> None:
        self.peer = Peer()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._target: Future[str] = Future()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def start(self) -> str:
        """HOST:PORT, when it listens."""
        self._thread.start()
        return self._target.result(timeout=30)

    def stop(self) -> None:
        """Cancel what runs and wait for the end."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        # As the real one: the client's keepalive during a long silence is no abuse.
        server = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self.peer, server)
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self.peer, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self.peer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.peer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._target.set_result(f"127.0.0.1:{port}")
        await self._stop.wait()
        await server.stop(grace=0)
