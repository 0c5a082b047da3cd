"""What the clients raise, and what they refuse to send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

import clients
from clients import AsyncClient, Client, Violation
from octavo.serving.v1 import generation_pb2
from tests.clients.peer import Peer, answer, bad_request, check_completion, fail, response


async def refuse(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
    await fail(
        context,
        grpc.StatusCode.INVALID_ARGUMENT,
        "top_p is 0",
        bad_request("sampling_params.top_p", "0 is not in (0, 1]"),
        error_details_pb2.ErrorInfo(reason="INVALID_REQUEST"),
    )
    yield response()


def check_refusal(error: clients.InvalidRequestError) -> None:
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.message == "top_p is 0"
    assert error.violations == (Violation("sampling_params.top_p", "0 is not in (0, 1]"),)
    assert error.reason == "INVALID_REQUEST"
    assert error.retry_after is None
    assert str(error) == "INVALID_ARGUMENT: top_p is 0"


def test_a_refusal_carries_the_violations(peer: Peer, target: str) -> None:
    peer.script = refuse
    with Client(target) as client:
        with pytest.raises(clients.InvalidRequestError) as caught:
            client.complete("x", top_p=0.0)
        check_refusal(caught.value)
        peer.script = answer
        check_completion(client.complete("the next request works"))


def test_an_asynchronous_refusal_carries_the_violations(peer: Peer, target: str) -> None:
    peer.script = refuse

    async def run() -> None:
        async with AsyncClient(target) as client:
            await client.complete("x", top_p=0.0)

    with pytest.raises(clients.InvalidRequestError) as caught:
        asyncio.run(run())
    check_refusal(caught.value)


def test_a_full_queue_says_when_to_try_again(peer: Peer, target: str) -> None:
    async def full(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
        await fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry)
        yield response()

    peer.script = full
    with Client(target) as client, pytest.raises(clients.ResourceExhaustedError) as caught:
        client.complete("x")
    assert caught.value.retry_after == 1.5


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, clients.NotFoundError),
        (grpc.StatusCode.ALREADY_EXISTS, clients.AlreadyExistsError),
        (grpc.StatusCode.UNAVAILABLE, clients.UnavailableError),
        (grpc.StatusCode.INTERNAL, clients.InternalError),
        (grpc.StatusCode.UNIMPLEMENTED, clients.OctavoError),
    ],
)
def test_each_status_has_its_exception(
    peer: Peer, target: str, code: grpc.StatusCode, kind: type[clients.OctavoError]
) -> None:
    async def failing(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield response("a", (1,))
        await context.abort(code, "why")

    peer.script = failing
    with Client(target) as client:
        stream = client.generate("x")
        assert next(stream).text == "a"
        with pytest.raises(clients.OctavoError) as caught:
            next(stream)
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.message, caught.value.violations) == (code, "why", ())


def test_nobody_answers() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(clients.UnavailableError):
        client.health(timeout=10)


@pytest.mark.parametrize(
    ("keywords", "field"),
    [
        ({"max_tokens": -1}, "sampling_params.max_tokens"),
        ({"temperature": "hot"}, "sampling_params.temperature"),
        ({"stop_token_ids": [2**32]}, "sampling_params.stop_token_ids"),
        ({"priority": 2**31}, "priority"),
        ({"tenant": 7}, "tenant"),
        ({"stop": ["\ud800"]}, "sampling_params.stop"),
        ({"stop": "x"}, "sampling_params.stop"),
        ({"stop": 7}, "sampling_params.stop"),
        ({"temperature": [1.0]}, "sampling_params.temperature"),
        ({"json_schema": {"enum": {1}}}, "sampling_params.json_schema"),
        ({"bad_words": "xy"}, "sampling_params.bad_words"),
        ({"choice": "yes"}, "sampling_params.choice"),
        ({"logit_bias": [(1, 2.0)]}, "sampling_params.logit_bias"),
        ({"token_ids": b"\1"}, "token_ids"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{"id": "b"}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(target: str, keywords: dict[str, Any], field: str) -> None:
    prompt = None if {"messages", "token_ids"} & keywords.keys() else "x"
    with Client(target) as client, pytest.raises(clients.InvalidRequestError) as caught:
        client.generate(prompt, **keywords)
    assert [violation.field for violation in caught.value.violations] == [field]
    assert caught.value.message.startswith(f"{field}: ")
    if "messages" not in keywords:
        assert str(next(iter(keywords.values()))) in caught.value.message


def test_a_refusal_says_what_kind_of_value_belongs_there(target: str) -> None:
    with Client(target) as client:
        with pytest.raises(clients.InvalidRequestError, match="'x' does not fit the field: must be a list"):
            client.generate("x", stop="x")
        with pytest.raises(clients.InvalidRequestError, match="does not fit the field: must be a mapping"):
            client.generate("x", logit_bias=[1])  # type: ignore[arg-type]


def test_a_refusal_of_a_long_prompt_is_short(target: str) -> None:
    with Client(target) as client, pytest.raises(clients.InvalidRequestError) as caught:
        client.generate(token_ids=[*range(10_000), -1])
    assert len(str(caught.value)) < 200


def test_what_belongs_to_a_chat_is_refused_without_one(target: str) -> None:
    with Client(target) as client, pytest.raises(TypeError, match="tools: only with messages"):
        client.generate("x", tools=[{"type": "function"}])


def test_any_iterable_of_token_ids_is_sent(peer: Peer, target: str) -> None:
    peer.script = answer
    with Client(target) as client:
        client.complete(token_ids=numpy.array([3, 5]), max_tokens=1)  # type: ignore[arg-type]
    assert list(peer.requests[0].token_ids.ids) == [3, 5]


def check_forms(error: clients.InvalidRequestError) -> None:
    fields = ["sampling_params.regex", "sampling_params.choice"]
    assert [violation.field for violation in error.violations] == fields
    assert f"at most one of {', '.join(fields)}" in error.message


def test_two_forms_of_structured_output_are_refused(target: str) -> None:
    async def run() -> None:
        async with AsyncClient(target) as client:
            await client.complete("a", regex="a", choice=["b"])

    with Client(target) as client, pytest.raises(clients.InvalidRequestError) as caught:
        client.complete("a", regex="a", choice=["b"])
    check_forms(caught.value)
    with pytest.raises(clients.InvalidRequestError) as caught:
        asyncio.run(run())
    check_forms(caught.value)


def test_misuse_is_a_python_error(target: str) -> None:
    with Client(target) as client:
        with pytest.raises(TypeError, match="exactly one of prompt, messages and token_ids, not none"):
            client.generate()
        with pytest.raises(TypeError, match="not prompt and token_ids"):
            client.generate("x", token_ids=[1])
        with pytest.raises(TypeError, match="max_token"):
            client.generate("x", max_token=4)  # type: ignore[call-arg]
