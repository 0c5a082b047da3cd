"""Both clients against a scripted server: what arrives there, what comes back, and how calls end."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2

import clients
from clients import AsyncClient, Client, FinishReason, Message, SamplingParams, ToolCall, Violation
from octavo.serving.v1 import admin_pb2, generation_pb2
from tests.clients.peer import Peer, bad_request, fail, last_response, response

CANCEL_CAP_S = 30


async def answer(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
    """ "Héy" in three deltas, the second of which has an id and no text yet."""
    top = generation_pb2.TopLogprob(token_id=9, logprob=-0.5)
    yield response("H", (7,), logprobs=[generation_pb2.TokenLogprob(token_id=7, logprob=-1.5, top=[top])])
    yield response("", (8,), logprobs=[generation_pb2.TokenLogprob(token_id=8, logprob=-2.0)])
    yield response("éy", (9, 2), finish_reason=generation_pb2.FINISH_REASON_STOP, stop_token_id=2)
    yield last_response(prompt_tokens=5, cached_tokens=4, completion_tokens=4, queue_seconds=0.25)


async def endless(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
    """One delta and then nothing until the call is cancelled."""
    yield response("a", (1,))
    await asyncio.Event().wait()


def check_completion(completion: clients.Completion) -> None:
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


def test_a_stream_gives_typed_deltas_and_then_the_usage(peer: Peer, target: str) -> None:
    peer.script = answer
    with Client(target) as client, client.generate("hello", max_tokens=4) as stream:
        deltas = list(stream)
    assert [delta.text for delta in deltas] == ["H", "", "éy"]
    assert [delta.token_ids for delta in deltas] == [(7,), (8,), (9, 2)]
    assert [delta.finish_reason for delta in deltas] == [None, None, FinishReason.STOP]
    assert stream.request_id == "r1"
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 4


def test_an_asynchronous_stream_gives_the_same(peer: Peer, target: str) -> None:
    peer.script = answer

    async def run() -> tuple[list[str], clients.Usage | None]:
        async with AsyncClient(target) as client, client.generate("hello") as stream:
            return [delta.text async for delta in stream], stream.usage

    texts, usage = asyncio.run(run())
    assert texts == ["H", "", "éy"]
    assert usage is not None
    assert usage.prompt_tokens == 5


def test_complete_joins_the_deltas(peer: Peer, target: str) -> None:
    peer.script = answer
    with Client(target) as client:
        check_completion(client.complete("hello"))


def test_asynchronous_complete_joins_the_deltas(peer: Peer, target: str) -> None:
    peer.script = answer

    async def run() -> clients.Completion:
        async with AsyncClient(target) as client:
            return await client.complete("hello")

    check_completion(asyncio.run(run()))


def test_complete_has_a_choice_per_sequence(peer: Peer, target: str) -> None:
    async def two(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        assert request.sampling_params.n == 2
        yield response("b", (1,), index=1)
        both = response("x", (5,), index=0)
        both.deltas.append(generation_pb2.SequenceDelta(index=1, text="c", token_ids=[2], finish_reason=2))
        yield both
        yield response("", (7,), finish_reason=generation_pb2.FINISH_REASON_STOP, stop_token_id=7)
        yield last_response(completion_tokens=4)

    async def asynchronous() -> clients.Completion:
        async with AsyncClient(target) as client:
            return await client.complete("hello", n=2)

    peer.script = two
    with Client(target) as client:
        completion = client.complete("hello", n=2)
        assert [(delta.index, delta.text) for delta in client.generate("hello", n=2)] == [
            (1, "b"),
            (0, "x"),
            (1, "c"),
            (0, ""),
        ]
    assert completion == asyncio.run(asynchronous())
    first, second = completion.choices
    assert (first.index, first.text, first.token_ids, first.stop_token_id) == (0, "x", (5, 7), 7)
    assert (second.index, second.text, second.token_ids, second.stop_token_id) == (1, "bc", (1, 2), None)
    assert [choice.finish_reason for choice in completion.choices] == [FinishReason.STOP, FinishReason.LENGTH]
    assert (completion.text, completion.token_ids, completion.finish_reason) == ("x", (5, 7), FinishReason.STOP)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 4


def test_every_part_of_a_request_arrives(peer: Peer, target: str) -> None:
    peer.script = answer
    params = SamplingParams(temperature=0.5, stop_token_ids=[3, 4], logit_bias={5: -1.0}, ignore_eos=False, n=1)
    turns = [Message(role="system", content="short"), Message(role="user", content="hello")]
    with Client(target) as client:
        client.complete(
            messages=turns,
            sampling_params=params,
            temperature=0.0,
            seed=2**64 - 1,
            request_id="mine",
            tenant="t",
            priority=-1,
            cache_salt="s",
            model="m",
        )
        client.complete(token_ids=[1, 2])
        client.complete("text", priority=0)
    chat, ids, text = peer.requests
    assert [(turn.role, turn.content) for turn in chat.chat.messages] == [("system", "short"), ("user", "hello")]
    assert (chat.request_id, chat.tenant, chat.priority, chat.cache_salt, chat.model) == ("mine", "t", -1, "s", "m")
    sampling = chat.sampling_params
    assert sampling.HasField("temperature")
    assert sampling.temperature == 0.0, "a keyword overrides the field of sampling_params"
    assert (sampling.seed, sampling.n, list(sampling.stop_token_ids)) == (2**64 - 1, 1, [3, 4])
    assert dict(sampling.logit_bias) == {5: -1.0}
    assert sampling.HasField("ignore_eos")
    assert not sampling.HasField("top_k"), "what is not given is not sent"
    assert list(ids.token_ids.ids) == [1, 2]
    assert not ids.HasField("priority")
    assert text.text == "text"
    assert text.HasField("priority")


def test_a_chat_with_tools_arrives_and_its_calls_come_back(peer: Peer, target: str) -> None:
    async def calls(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        part = generation_pb2.ToolCallDelta
        yield response("So ", (1,), reasoning="h", tool_calls=[part(index=0, id="c0", name="f", arguments='{"x"')])
        yield response(
            "", (2,), reasoning="m", tool_calls=[part(index=0, arguments=": 1}"), part(index=1, id="c1", name="g")]
        )
        yield response("be it", (3,), finish_reason=generation_pb2.FINISH_REASON_STOP, stop_string="it")
        yield last_response()

    peer.script = calls
    tool = {"type": "function", "function": {"name": "f", "parameters": {"maximum": 5}}}
    turn = Message(role="user", content="Go")
    with Client(target) as client:
        first = client.complete(
            messages=[turn],
            tools=[tool],
            template_kwargs={"enable_thinking": True},
            add_generation_prompt=False,
            tool_call_parser="hermes",
            reasoning_parser="think",
        )
        assert (first.text, first.reasoning, first.stop_string) == ("So be it", "hm", "it")
        assert first.tool_calls == (ToolCall(id="c0", name="f", arguments='{"x": 1}'), ToolCall(id="c1", name="g"))
        answered = Message(role="assistant", content=first.text, tool_calls=first.tool_calls, reasoning=first.reasoning)
        found = Message(role="tool", content="42", tool_call_id="c0", name="f")
        client.complete(messages=[turn, answered, found], continue_final_message=True)
    asked, again = peer.requests
    assert json.loads(asked.chat.tools[0]) == tool
    assert json.loads(asked.chat.template_kwargs) == {"enable_thinking": True}
    assert asked.chat.HasField("add_generation_prompt") and not asked.chat.add_generation_prompt
    assert (asked.tool_call_parser, asked.reasoning_parser) == ("hermes", "think")
    _, spoken, result = again.chat.messages
    assert [(call.id, call.name, call.arguments) for call in spoken.tool_calls] == [
        ("c0", "f", '{"x": 1}'),
        ("c1", "g", ""),
    ]
    assert (spoken.reasoning, result.tool_call_id, result.name) == ("hm", "c0", "f")
    assert again.chat.continue_final_message
    assert not again.chat.HasField("add_generation_prompt")
    assert not again.HasField("tool_call_parser")


def test_an_echo_brings_the_prompts_ids(peer: Peer, target: str) -> None:
    async def echo(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        first = response("hey", (3,))
        first.prompt_token_ids.extend([1, 2])
        yield first
        yield last_response()

    peer.script = echo
    with Client(target) as client:
        assert client.complete("he", echo=True).prompt_token_ids == (1, 2)


def test_tokens_come_and_go(peer: Peer, target: str) -> None:
    async def asynchronous() -> tuple[clients.Tokens, int, str]:
        async with AsyncClient(target) as client:
            tokens = await client.tokenize("Pé", without_special_tokens=True, with_token_bytes=True)
            return tokens, await client.count_tokens(token_ids=[1, 2]), await client.detokenize([1, 2])

    with Client(target) as client:
        turns = [Message(role="user", content="P")]
        tokens = client.tokenize(messages=turns, tools=[{}], model="m")
        answers = (tokens, client.count_tokens("Pé"), client.detokenize([1, 2], skip_special_tokens=False))
        with pytest.raises(clients.InvalidRequestError, match="token_ids"):
            client.detokenize([-1])
    assert answers == asyncio.run(asynchronous())
    assert answers[1:] == (2, "Pé")
    assert (tokens.token_ids, tokens.token_bytes, tokens.rendered, tokens.max_model_len) == (
        (1, 2),
        (b"P", b"\xc3"),
        "<P>",
        8,
    )
    chat, text, ids, plain, counted, default = peer.requests
    assert (chat.chat.messages[0].content, list(chat.chat.tools), chat.model) == ("P", ["{}"], "m")
    assert (text.text, list(ids.token_ids), ids.HasField("skip_special_tokens")) == ("Pé", [1, 2], True)
    assert (plain.text, plain.without_special_tokens, plain.with_token_bytes) == ("Pé", True, True)
    assert (list(counted.token_ids.ids), default.HasField("skip_special_tokens")) == ([1, 2], False)


def test_empty_prompts_are_left_to_the_server(peer: Peer, target: str) -> None:
    peer.script = answer
    with Client(target) as client:
        client.complete("")
        client.complete(token_ids=[])
        client.complete(messages=[])
    assert [request.WhichOneof("prompt") for request in peer.requests] == ["text", "token_ids", "chat"]


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


def test_a_timeout_is_the_deadline_of_the_call(peer: Peer, target: str) -> None:
    peer.script = endless
    with Client(target) as client, pytest.raises(clients.DeadlineError):
        client.complete("x", timeout=0.2)
    assert peer.cancelled.wait(CANCEL_CAP_S)


def surface(kind: type) -> dict[str, tuple[inspect.Parameter, ...]]:
    """Public names and their parameters; names that asyncio's conventions change are those of the synchronous twin."""
    synchronous = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
    synchronous |= {"__anext__": "__next__"}
    public = {name: value for name, value in vars(kind).items() if callable(value)}
    return {
        synchronous.get(name, name): tuple(inspect.signature(value).parameters.values())
        for name, value in public.items()
        if not name.startswith("_") or name in {*synchronous, *synchronous.values(), "__init__"}
    }


@pytest.mark.parametrize(
    ("synchronous", "asynchronous"), [(Client, AsyncClient), (clients.DeltaStream, clients.AsyncDeltaStream)]
)
def test_both_clients_have_the_same_methods_with_the_same_parameters(synchronous: type, asynchronous: type) -> None:
    assert surface(synchronous) == surface(asynchronous)
    assert {"__init__", "__enter__", "close"} < set(surface(synchronous))


def test_nobody_answers() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(clients.UnavailableError):
        client.health(timeout=10)


def test_closing_a_stream_cancels_the_call(peer: Peer, target: str) -> None:
    peer.script = endless
    with Client(target) as client:
        stream = client.generate("x")
        assert next(stream).text == "a"
        stream.close()
        assert list(stream) == []
        assert peer.cancelled.wait(CANCEL_CAP_S)


def test_closing_a_stream_ends_the_iteration_of_another_thread(peer: Peer, target: str) -> None:
    peer.script = endless
    with Client(target) as client:
        stream = client.generate("x")
        first = threading.Event()
        texts: list[str] = []

        def read() -> None:
            for delta in stream:
                texts.append(delta.text)
                first.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert first.wait(CANCEL_CAP_S)
        stream.close()
        reader.join(CANCEL_CAP_S)
        assert not reader.is_alive()
        assert texts == ["a"]


def test_breaking_out_of_a_loop_cancels_the_call(peer: Peer, target: str) -> None:
    peer.script = endless
    with Client(target) as client:
        for _ in client.generate("x"):
            break
        assert peer.cancelled.wait(CANCEL_CAP_S)


def test_closing_an_asynchronous_stream_cancels_the_call(peer: Peer, target: str) -> None:
    peer.script = endless

    async def run() -> list[str]:
        async with AsyncClient(target) as client:
            stream = client.generate("x")
            first = await anext(stream)
            reader = asyncio.create_task(_texts(stream))
            await asyncio.sleep(0)  # the reader waits for the next delta
            await stream.aclose()
            assert await asyncio.to_thread(peer.cancelled.wait, CANCEL_CAP_S)
            return [first.text, *await reader]

    assert asyncio.run(run()) == ["a"]


def test_cancelling_the_task_cancels_the_call(peer: Peer, target: str) -> None:
    peer.script = endless

    async def run() -> None:
        async with AsyncClient(target) as client:
            task = asyncio.create_task(client.complete("x"))
            assert await asyncio.to_thread(peer.requested.wait, CANCEL_CAP_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(peer.cancelled.wait, CANCEL_CAP_S)

    asyncio.run(run())


async def _texts(stream: clients.AsyncDeltaStream) -> list[str]:
    return [delta.text async for delta in stream]


def test_closing_the_client_fails_its_streams(peer: Peer, target: str) -> None:
    peer.script = endless

    async def run() -> None:
        client = AsyncClient(target)
        stream = client.generate("x")
        await anext(stream)
        await client.aclose()
        with pytest.raises(clients.OctavoError) as caught:
            await anext(stream)
        assert caught.value.code is grpc.StatusCode.CANCELLED

    asyncio.run(run())


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
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(target: str, keywords: dict[str, Any], field: str) -> None:
    with Client(target) as client, pytest.raises(clients.InvalidRequestError) as caught:
        client.generate("x", **keywords)
    assert [violation.field for violation in caught.value.violations] == [field]
    assert str(next(iter(keywords.values()))) in caught.value.message


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


def test_model_info_stats_and_health(peer: Peer, target: str) -> None:
    peer.model_info = generation_pb2.GetModelInfoResponse(
        served_model_name="m", max_model_len=8192, eos_token_ids=[2, 3], has_chat_template=True, weights_digest=b"\x01"
    )
    peer.stats = admin_pb2.GetStatsResponse(
        queues=admin_pb2.QueueStats(running=1),
        blocks=admin_pb2.BlockStats(total=10, free=4, cached=5, referenced=1),
        counters=admin_pb2.CounterStats(steps=12),
        worker=admin_pb2.WorkerStats(address="w:1", connected=True),
    )

    async def asynchronous() -> tuple[clients.ModelInfo, clients.Stats, bool]:
        async with AsyncClient(target) as client:
            return await client.model_info(), await client.stats(), await client.health()

    with Client(target) as client:
        info, stats, healthy = client.model_info(), client.stats(), client.health()
        assert (info, stats, healthy) == asyncio.run(asynchronous())
        peer.health = health_pb2.HealthCheckResponse.NOT_SERVING
        assert not client.health()
    assert healthy
    assert (info.served_model_name, info.max_model_len, info.eos_token_ids) == ("m", 8192, (2, 3))
    assert info.has_chat_template
    assert info.weights_digest == b"\x01"
    assert (stats.queues.running, stats.blocks.total, stats.counters.steps) == (1, 10, 12)
    assert (stats.worker.address, stats.worker.connected) == ("w:1", True)
