"""Requests on the books of the front end, with an engine that is driven by hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.core.result import EndReason
from scheduler.frontend.errors import (
    DrainingError,
    DuplicateRequestError,
    InvalidRequestError,
    RejectedError,
    UnknownModelError,
    Violation,
)
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.request import (
    SamplingInput,
    TextPrompt,
    TokenPrompt,
)
from scheduler.messages import Rejected
from tests.scheduler.frontend.engine_script import EngineScript
from tests.scheduler.frontend.gated_tokenizer import gated
from tests.scheduler.frontend.streams import collect, request, run, turns


def test_a_refusal_of_the_core_is_raised(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request()) as stream:
            sequence_id = engine.added[0].sequence_id
            text = "needs 13 blocks, pool 12"
            refusal = Rejected(
                sequence_id=sequence_id, kind="NeverFitsError", message=text, field="prompt", value="13", limit="12"
            )
            engine.update(rejected=(refusal,))
            with pytest.raises(RejectedError, match=text) as error:
                await anext(stream)
            assert error.value.violations == (Violation(field="token_ids.ids", description=text),)
        assert engine.cancelled == []

    run(test())


def test_leaving_early_and_being_cancelled_cancel_the_sequence(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request()) as stream:
            engine.tokens(engine.added[0].sequence_id, b"a")
            await anext(stream)
        assert engine.cancelled == [engine.added[0].sequence_id]

        async def read() -> None:
            async with frontend.open(request()) as stream:
                await collect(stream)

        task = asyncio.create_task(read())
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.cancelled == [spec.sequence_id for spec in engine.added]
        assert frontend.num_live == 0
        engine.tokens(engine.added[1].sequence_id, b"late")  # what was on its way is ignored

    run(test())


def test_request_ids_are_unique_while_live_and_reusable_from_the_end_on(
    engine: EngineScript, frontend: Frontend
) -> None:
    async def test() -> None:
        async with frontend.open(request("same")) as first:
            with pytest.raises(DuplicateRequestError, match="'same' is in use"):
                async with frontend.open(request("same")):
                    pass
            engine.end(engine.added[0].sequence_id, EndReason.LENGTH, last=1, count=1)
            async with frontend.open(request("same")):  # though the first has not been read to its end
                assert engine.added[1].sequence_id != engine.added[0].sequence_id
            assert len(await collect(first)) == 1
        with pytest.raises(InvalidRequestError):
            async with frontend.open(request("same", prompt=TokenPrompt(ids=()))):
                pass
        assert frontend.num_live == 0

    run(test())


def test_two_at_once_cannot_both_get_an_id_while_a_long_prompt_is_tokenised(
    engine: EngineScript, frontend: Frontend
) -> None:
    async def test() -> None:
        long = TextPrompt(text="x" * 100_000)

        async def attempt() -> None:
            async with frontend.open(request("same", prompt=long)):
                pass

        errors = await asyncio.gather(attempt(), attempt(), return_exceptions=True)
        assert sorted(type(error).__name__ for error in errors) == ["DuplicateRequestError", "InvalidRequestError"]
        assert engine.added == []

    run(test())


def test_long_prompts_wait_for_a_thread_and_are_not_begun_when_their_caller_goes(
    engine: EngineScript, byte_model: Path, model: ModelInfo
) -> None:
    async def test() -> None:
        tokenizer, gate = gated(byte_model)
        frontend = Frontend(tokenizer=tokenizer, model=replace(model, max_model_len=8192), send=engine.send)

        async def attempt(letter: str) -> None:
            async with frontend.open(request(letter, prompt=TextPrompt(text=letter * 5000))):
                pass

        try:
            first, second = asyncio.create_task(attempt("a")), asyncio.create_task(attempt("b"))
            await turns()  # these have the two threads
            third, fourth = asyncio.create_task(attempt("c")), asyncio.create_task(attempt("d"))
            await turns()
            third.cancel()
            with pytest.raises(asyncio.CancelledError):
                await third
            assert frontend.num_live == 3
            async with frontend.open(request("short")):  # nobody else waits
                assert len(engine.added) == 1
        finally:
            gate.open()
        await asyncio.gather(first, second, fourth)
        assert sorted(text[0] for text in gate.texts) == ["a", "b", "d"]
        assert sorted(chr(spec.prompt[0]) for spec in engine.added[1:]) == ["a", "b", "d"]
        assert frontend.num_live == 0

    run(test())


def test_the_spec_holds_what_was_asked_for(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        given = request(sampling=SamplingInput(seed=7, max_tokens=5), tenant="t", priority=-3, cache_salt="s")
        async with frontend.open(given, deadline_ns=123), frontend.open(request("b")), frontend.open(request("c")):
            spec, second, third = engine.added
            assert (spec.seed, spec.max_tokens, spec.tenant, spec.priority, spec.cache_salt, spec.deadline_ns) == (
                7,
                5,
                "t",
                -3,
                "s",
                123,
            )
            assert (spec.open_ended, second.open_ended, second.max_tokens) == (False, True, 61)
            assert second.seed != third.seed  # picked by the server
            assert 0 <= second.seed < 2**64
            assert second.deadline_ns is None

    run(test())


def test_several_sequences_differ_in_their_seeds_alone(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        sampling = SamplingInput(n=3, seed=2**64 - 2, max_tokens=5)
        async with frontend.open(request(sampling=sampling, tenant="t"), deadline_ns=9):
            first, second, third = engine.added
            assert [spec.seed for spec in engine.added] == [2**64 - 2, 2**64 - 1, 0]
            assert len({spec.sequence_id for spec in engine.added}) == 3
            for other in (second, third):
                assert replace(other, sequence_id=first.sequence_id, seed=first.seed) == first
            (live,) = frontend.requests()
            assert live.sequence_ids == {index: spec.sequence_id for index, spec in enumerate(engine.added)}
            engine.end(second.sequence_id, EndReason.LENGTH, last=1, count=1)
            (live,) = frontend.requests()
            assert live.sequence_ids == {0: first.sequence_id, 2: third.sequence_id}
            assert frontend.num_live == 1
        assert engine.cancelled == [first.sequence_id, third.sequence_id]  # one has ended
        assert frontend.num_live == 0

    run(test())


def test_a_refusal_stands_for_all_sequences(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request(sampling=SamplingInput(n=3))) as stream:
            message = "n is 3, must be at most 2 (max_num_seqs): all are admitted together"
            refusal = Rejected(
                sequence_id=engine.added[0].sequence_id,
                kind="InvalidSequenceError",
                message=message,
                field="n",
                value="3",
                limit="2",
            )
            engine.update(rejected=(refusal,))
            assert frontend.requests() == []
            with pytest.raises(RejectedError) as error:
                await anext(stream)
            assert error.value.violations == (Violation(field="sampling_params.n", description=message),)
        assert engine.cancelled == []

    run(test())


def test_another_model_is_refused(frontend: Frontend) -> None:
    async def test() -> None:
        with pytest.raises(UnknownModelError, match="'other' is not served here, 'bytes' is"):
            async with frontend.open(request(model="other")):
                pass
        async with frontend.open(request(model="bytes")):
            pass

    run(test())


def test_draining_refuses_new_requests_and_serves_the_live_ones(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request("old")) as stream:
            frontend.drain()
            with pytest.raises(DrainingError):
                async with frontend.open(request("new")):
                    pass
            assert frontend.num_live == 1
            engine.end(engine.added[0].sequence_id, EndReason.LENGTH, last=ord("a"), count=1)
            assert frontend.requests() == []  # and yet its caller has not got the end of it
            assert frontend.num_live == 1
            assert [delta.text for delta in await collect(stream)] == ["a"]
        assert frontend.num_live == 0

    run(test())


def test_an_id_reused_before_its_first_stream_is_left_is_the_second_streams(
    engine: EngineScript, frontend: Frontend
) -> None:
    async def test() -> None:
        first = frontend.open(request())
        await first.__aenter__()
        engine.end(engine.added[0].sequence_id, EndReason.LENGTH)
        async with frontend.open(request()):
            await first.__aexit__(None, None, None)  # later than the engine's end, as a slow reader does
            assert engine.cancelled == []
            assert [live.request_id for live in frontend.requests()] == ["r"]
            with pytest.raises(DuplicateRequestError):
                await frontend.open(request()).__aenter__()
        assert engine.cancelled == [engine.added[1].sequence_id]

    run(test())
