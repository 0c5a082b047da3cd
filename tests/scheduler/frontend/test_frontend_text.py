"""Text of the front end's streams, with an engine that is driven by hand: stop strings, echo, parsed output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from scheduler.core.result import EndReason
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.parsing.choice import ParserDefaults
from scheduler.frontend.request import (
    ChatMessage,
    ChatPrompt,
    SamplingInput,
    TextPrompt,
    TokenPrompt,
)
from scheduler.frontend.sequence_output import Delta
from scheduler.frontend.tokenizer import Tokenizer, load_tokenizer
from scheduler.frontend.tokenizer_parts import TokenizerParts
from tests.oracle.tokenizer import EOS
from tests.scheduler.frontend.engine_script import EngineScript
from tests.scheduler.frontend.streams import FOX, collect, request, run, take
from tests.scheduler.frontend.test_whole_text import backend


def test_a_stop_token_has_no_text_even_if_it_is_a_letter(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        sampling = SamplingInput(stop_token_ids=(ord("x"),))
        async with frontend.open(request(sampling=sampling)) as stream:
            sequence_id = engine.added[0].sequence_id
            engine.tokens(sequence_id, b"ab")
            engine.end(sequence_id, EndReason.STOP, last=ord("x"), stop_token_id=ord("x"), count=3)
            (delta,) = await collect(stream)
            assert (delta.text, delta.token_ids) == ("ab", tuple(b"abx"))

    run(test())


def test_length_in_mid_character_flushes_one_mark(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request()) as stream:
            engine.end(engine.added[0].sequence_id, EndReason.LENGTH, last=FOX[1], count=1)
            assert [delta.text for delta in await collect(stream)] == ["\ufffd"]

    run(test())


async def stopped_by(engine: EngineScript, frontend: Frontend, token_ids: bytes, **sampling: Any) -> list[Delta]:
    """The deltas of a sequence that gets these tokens, read one by one."""
    async with frontend.open(request(sampling=SamplingInput(**sampling))) as stream:
        sequence_id = engine.added[-1].sequence_id
        deltas = []
        for token_id in token_ids:
            engine.tokens(sequence_id, [token_id])
            deltas += (await anext(stream)).deltas if not deltas or deltas[-1].end is None else []
        return deltas


def test_a_stop_string_ends_the_sequence_here_and_in_the_engine(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        deltas = await stopped_by(engine, frontend, b"aSTOPxy", stop=("STOP",))
        assert [delta.text for delta in deltas] == ["a", "", "", "", ""]
        assert [id_ for delta in deltas for id_ in delta.token_ids] == [*b"aSTOP"]
        last = deltas[-1]
        assert last.end is not None
        assert (last.end.reason, last.end.num_output_tokens, last.stop_string) == (EndReason.STOP, 5, "STOP")
        assert engine.finished == [(engine.added[0].sequence_id, 5)]
        assert engine.cancelled == []
        assert frontend.num_live == 0

    run(test())


def test_a_hit_ends_the_sequence_though_nobody_reads(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        sampling = SamplingInput(stop=("b",), logprobs=0)
        async with frontend.open(request(sampling=sampling)) as stream:
            (sequence_id,) = (spec.sequence_id for spec in engine.added)
            for token_id in b"abc":
                engine.update(
                    sequence_ids=(sequence_id,),
                    token_ids=(token_id,),
                    logprobs=(-0.5,),
                    top_tokens=((),),
                    top_logprobs=((),),
                )
            assert engine.finished == [(sequence_id, 2)]
            assert frontend.requests() == []
            piece = await anext(stream)
            (delta,) = piece.deltas
            assert (delta.text, delta.token_ids, len(delta.logprobs)) == ("a", tuple(b"ab"), 2)
            assert piece.usage is not None and piece.usage.completion_tokens == 2
            assert await collect(stream) == []

    run(test())


def test_a_stop_string_beats_the_length_of_the_same_token(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request(sampling=SamplingInput(stop=("b",), max_tokens=2))) as stream:
            sequence_id = engine.added[0].sequence_id
            engine.tokens(sequence_id, b"a")
            engine.end(sequence_id, EndReason.LENGTH, last=ord("b"), count=2)
            (delta,) = await collect(stream)
            assert delta.end is not None and delta.end.reason is EndReason.STOP
            assert (delta.text, delta.stop_string) == ("a", "b")

    run(test())


def test_what_is_held_back_comes_at_the_end(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request(sampling=SamplingInput(stop=("STOP",)))) as stream:
            sequence_id = engine.added[0].sequence_id
            engine.tokens(sequence_id, b"aSTO")
            assert (await take(stream)).text == "a"
            engine.end(sequence_id, EndReason.STOP, last=EOS, stop_token_id=EOS, count=5)
            (delta,) = await collect(stream)
            assert (delta.text, delta.stop_string) == ("STO", None)
            assert engine.finished == []

    run(test())


def test_each_of_several_sequences_stops_by_itself(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request(sampling=SamplingInput(n=2, stop=("xy",)))) as stream:
            one, two = (spec.sequence_id for spec in engine.added)
            engine.update(sequence_ids=(one, two), token_ids=(ord("x"), ord("x")))
            engine.update(sequence_ids=(one, two), token_ids=(ord("y"), ord("z")))
            assert engine.finished == [(one, 2)]
            first, second = (await anext(stream)).deltas
            assert (first.text, first.stop_string, second.text, second.stop_string) == ("", "xy", "xz", None)
            engine.end(two, EndReason.LENGTH, last=ord("x"), count=3)
            piece = await anext(stream)
            assert [delta.text for delta in piece.deltas] == ["x"]
            assert piece.usage is not None and piece.usage.completion_tokens == 5

    run(test())


def test_a_stop_token_completes_no_stop_string(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        sampling = SamplingInput(stop=("ab",), stop_token_ids=(ord("b"),))
        async with frontend.open(request(sampling=sampling)) as stream:
            sequence_id = engine.added[0].sequence_id
            engine.tokens(sequence_id, b"a")
            engine.end(sequence_id, EndReason.STOP, last=ord("b"), stop_token_id=ord("b"), count=2)
            (delta,) = await collect(stream)
            assert (delta.text, delta.stop_string) == ("a", None)

    run(test())


def test_echo_begins_each_text_with_the_prompts(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        prompt = TokenPrompt(ids=(257, *FOX[:2]))  # ends in mid-character
        async with frontend.open(request(prompt=prompt, sampling=SamplingInput(n=2, echo=True))) as stream:
            one, two = (spec.sequence_id for spec in engine.added)
            for first, second in zip(FOX[2:], b"xyzw", strict=False):
                engine.update(sequence_ids=(one, two), token_ids=(first, second))
            piece = await anext(stream)
            assert piece.echoed_ids == (257, *FOX[:2])
            assert [delta.text for delta in piece.deltas] == ["a🦊b", "a\ufffdxyzw"]
            assert [delta.token_ids for delta in piece.deltas] == [tuple(FOX[2:]), tuple(b"xyzw")]
            engine.tokens(one, b"c")
            again = await anext(stream)
            assert (again.echoed_ids, again.deltas[0].text) == ((), "c")

    run(test())


def test_an_echo_begins_a_text_and_an_output_alone_goes_on_with_one(engine: EngineScript, model: ModelInfo) -> None:
    made = backend("llama")  # its decoder drops the space in front of a text
    word = made.token_to_id("▁the")
    tokenizer = Tokenizer(TokenizerParts(backend=made))

    async def test() -> None:
        frontend = Frontend(
            tokenizer=tokenizer, model=replace(model, logits_width=tokenizer.vocab_size), send=engine.send
        )
        engine.deliver = frontend.deliver
        for echo, text in ((True, "the the"), (False, " the")):
            given = request(prompt=TokenPrompt(ids=(word,)), sampling=SamplingInput(echo=echo))
            async with frontend.open(given) as stream:
                engine.end(engine.added[-1].sequence_id, EndReason.LENGTH, last=word)
                assert [delta.text for delta in await collect(stream)] == [text]

    run(test())


def test_parsed_output_comes_as_deltas(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        given = request(prompt=TextPrompt(text="<think>\n"), tool_call_parser="hermes", reasoning_parser="think")
        async with frontend.open(given) as stream:
            sequence_id = engine.added[0].sequence_id
            deltas = []
            for text in ("hm", '</think>\n<tool_call>{"name": "f", "arguments": {"x": ', "1}}</tool_call>"):
                engine.tokens(sequence_id, text.encode())
                deltas.append(await take(stream))
            engine.end(sequence_id, EndReason.STOP, last=EOS, stop_token_id=EOS, count=9)
            deltas += await collect(stream)
            assert [delta.reasoning for delta in deltas] == ["hm", "", "", ""]
            assert [delta.text for delta in deltas] == [""] * 4
            (begin,), (rest,) = deltas[1].tool_calls, deltas[2].tool_calls
            assert (begin.name, begin.arguments, rest.name, rest.arguments) == ("f", '{"x": ', "", "1}")
            assert len(begin.call_id) == 9

    run(test())


@pytest.mark.parametrize(
    ("given", "sorted_"),
    [
        ({"tools": ("{}",)}, True),
        ({}, False),
        ({"tools": ("{}",), "tool_call_parser": "none"}, False),
        ({"tool_call_parser": "hermes"}, True),
    ],
)
def test_the_servers_parser_is_for_chats_with_tools_that_do_not_say(
    given: dict[str, Any], sorted_: bool, engine: EngineScript, byte_tokenizer: Tokenizer, model: ModelInfo
) -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'

    async def test() -> None:
        frontend = Frontend(
            tokenizer=byte_tokenizer, model=model, send=engine.send, parsers=ParserDefaults(tool_call="hermes")
        )
        engine.deliver = frontend.deliver
        chat = ChatPrompt(messages=(ChatMessage(role="user", content="x"),), tools=given.pop("tools", ()))
        async with frontend.open(request(prompt=chat, **given)) as stream:
            sequence_id = engine.added[0].sequence_id
            engine.tokens(sequence_id, call.encode())
            engine.end(sequence_id, EndReason.STOP, last=EOS, stop_token_id=EOS, count=9)
            (delta,) = await collect(stream)
            assert (delta.text, len(delta.tool_calls)) == (("", 1) if sorted_ else (call, 0))

    run(test())


def test_markers_that_are_special_tokens_are_found_and_not_shown(
    engine: EngineScript, byte_model: Path, tmp_path: Path, model: ModelInfo
) -> None:
    backend = Backend.from_file(str(byte_model / "tokenizer.json"))
    backend.add_special_tokens(["[TOOL_CALLS]", "[ARGS]", "<|other|>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    ids = tokenizer.encode("Well<|other|> [TOOL_CALLS]f[ARGS]{}", special_tokens=False)
    assert len(ids) == len("Well f{}") + 3

    async def test() -> None:
        frontend = Frontend(
            tokenizer=tokenizer, model=replace(model, logits_width=tokenizer.vocab_size), send=engine.send
        )
        engine.deliver = frontend.deliver
        async with frontend.open(request(tool_call_parser="mistral")) as stream:
            engine.tokens(engine.added[0].sequence_id, ids)
            engine.end(engine.added[0].sequence_id, EndReason.LENGTH, last=ord("!"))
            (delta,) = await collect(stream)
            assert [(part.name, part.arguments) for part in delta.tool_calls] == [("f", "{}")]
            assert delta.text == "Well !"

    run(test())
