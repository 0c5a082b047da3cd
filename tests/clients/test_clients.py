"""Both clients against a scripted server: what arrives there and what comes back."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

import clients
from clients import AsyncClient, Client, FinishReason, Message, SamplingParams, ToolCall
from octavo.serving.v1 import admin_pb2, generation_pb2
from tests.clients.peer import Peer, answer, check_completion, last_response, response


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


def test_a_whole_answer_comes_in_few_messages_and_a_stream_as_its_caller_says(peer: Peer, target: str) -> None:
    async def asynchronous() -> None:
        async with AsyncClient(target) as client:
            await client.complete("P")
            await client.complete("P", stream_interval=3)

    async def script(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield last_response()

    peer.script = script
    with Client(target) as client:
        client.complete("P")
        client.complete("P", stream_interval=3)
        list(client.generate("P", stream_interval=3))
        list(client.generate("P"))
    asyncio.run(asynchronous())
    asked = [each.stream_interval if each.HasField("stream_interval") else None for each in peer.requests]
    assert asked == [256, 3, 3, None, 256, 3]


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
