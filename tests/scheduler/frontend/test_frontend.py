"""Streams of the front end, with an engine that is driven by hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.core.result import End, EndReason
from scheduler.frontend.errors import (
    DrainingError,
    DuplicateRequestError,
    InvalidRequestError,
    RejectedError,
    SequenceEndedError,
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
from scheduler.frontend.sequence_output import Delta, TokenLogprob
from scheduler.frontend.stream import Usage
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.messages import Rejected, Started, StepUpdate
from tests.oracle.tokenizer import EOS, byte_ids
from tests.scheduler.frontend.engine_script import EngineScript
from tests.scheduler.frontend.gated_tokenizer import gated
from tests.scheduler.frontend.streams import FOX, collect, request, run, take, turns


def test_deltas_tokens_and_usage(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        engine.now_ns = 1_000_000_000
        async with frontend.open(request(prompt=TextPrompt(text="héy"))) as stream:
            (spec,) = engine.added
            assert spec.prompt == tuple(byte_ids("héy"))
            engine.now_ns = 1_500_000_000
            engine.start(spec.sequence_id, cached_tokens=2)
            engine.now_ns = 1_750_000_000
            engine.tokens(spec.sequence_id, FOX[:3])
            first = await anext(stream)
            assert first.usage is None
            assert first.deltas[0] == Delta(text="a", token_ids=tuple(FOX[:3]))
            engine.tokens(spec.sequence_id, FOX[3:])
            assert (await take(stream)).text == "🦊b"
            engine.now_ns = 3_000_000_000
            engine.start(spec.sequence_id, cached_tokens=0)  # admitted again after a preemption
            engine.now_ns = 3_750_000_000
            engine.end(spec.sequence_id, EndReason.STOP, last=EOS, stop_token_id=EOS, count=len(FOX) + 1)
            last = await anext(stream)
            (delta,) = last.deltas
            assert (delta.text, delta.token_ids) == ("", (EOS,))
            assert delta.end is not None
            assert delta.end.reason is EndReason.STOP
            assert last.usage == Usage(
                prompt_tokens=4,
                cached_tokens=2,
                completion_tokens=len(FOX) + 1,
                queue_seconds=0.5,
                prefill_seconds=0.25,
                decode_seconds=2.0,
            )
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        assert engine.cancelled == []

    run(test())


def test_a_reader_is_woken_once_per_step_and_a_slow_one_gets_one_bigger_delta(
    engine: EngineScript, frontend: Frontend
) -> None:
    async def test() -> None:
        async with frontend.open(request()) as stream:
            sequence_id = engine.added[0].sequence_id
            arrived: asyncio.Queue[Delta] = asyncio.Queue()

            async def read() -> None:
                async for piece in stream:
                    arrived.put_nowait(*piece.deltas)

            reader = asyncio.create_task(read())
            await turns()
            engine.start(sequence_id)
            deltas = []
            for token_id in b"abc":
                engine.tokens(sequence_id, [token_id])
                deltas.append(await arrived.get())  # the reader keeps up
            engine.tokens(sequence_id, b"defgh")  # it does not
            engine.end(sequence_id, EndReason.LENGTH, last=ord("i"), count=9)
            await reader
            deltas.append(arrived.get_nowait())
            assert arrived.empty()
            assert [delta.text for delta in deltas] == ["a", "b", "c", "defghi"]
            assert [delta.end is not None for delta in deltas] == [False, False, False, True]

    run(test())


@pytest.mark.parametrize("stops", [(), ("never",)])
def test_a_stream_interval_holds_all_but_the_first_token_and_the_end(
    engine: EngineScript, frontend: Frontend, stops: tuple[str, ...]
) -> None:
    async def test() -> None:
        sampling = SamplingInput(n=2, stop=stops)
        async with frontend.open(request(stream_interval=4, sampling=sampling)) as stream:
            one, two = (spec.sequence_id for spec in engine.added)
            arrived: list[list[tuple[int, str]]] = []

            async def read() -> None:
                async for piece in stream:
                    arrived.append([(delta.index, delta.text) for delta in piece.deltas])

            async def news() -> list[list[tuple[int, str]]]:
                await turns(20)
                pieces = arrived[:]
                arrived.clear()
                return pieces

            reader = asyncio.create_task(read())
            engine.tokens(one, b"a")
            assert await news() == [[(0, "a")]]
            engine.tokens(one, b"bcd")
            assert await news() == []
            assert frontend.metrics().unread_tokens == 0  # nobody is slow
            engine.tokens(two, b"A")  # the first of this one, and the other's share a message
            assert await news() == [[(0, "bcd"), (1, "A")]]
            engine.tokens(one, b"ef")
            engine.tokens(two, b"BC")
            assert await news() == []
            engine.tokens(one, b"gh")
            assert await news() == [[(0, "efgh"), (1, "BC")]]
            engine.tokens(two, b"D")
            engine.end(one, EndReason.LENGTH, last=ord("i"), count=9)
            assert await news() == [[(0, "i"), (1, "D")]]
            engine.tokens(two, b"E")
            engine.end(two, EndReason.LENGTH, count=5)
            await reader
            assert await news() == [[(1, "E")]]

    run(test())


def test_what_a_stream_interval_holds_comes_before_the_error(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request(stream_interval=2048)) as stream:
            sequence_id = engine.added[0].sequence_id
            engine.tokens(sequence_id, b"a")
            assert (await take(stream)).text == "a"
            engine.tokens(sequence_id, b"bc")
            late = asyncio.create_task(take(stream))
            await turns(20)
            assert not late.done()
            engine.end(sequence_id, EndReason.DEADLINE)
            assert (await late).text == "bc"
            with pytest.raises(SequenceEndedError):
                await take(stream)

    run(test())


def test_each_stream_gets_its_own_part_of_an_update(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        wanted = SamplingInput(logprobs=1)
        async with frontend.open(request("a", sampling=wanted)) as a, frontend.open(request("b")) as b:
            one, two = (spec.sequence_id for spec in engine.added)
            engine.deliver(
                StepUpdate(
                    now_ns=1,
                    started=(Started(sequence_id=two, cached_tokens=0), Started(sequence_id=one, cached_tokens=0)),
                    sequence_ids=(two, 999, one),
                    token_ids=(ord("b"), ord("?"), ord("a")),
                    logprobs=(float("nan"), -1.0, -0.5),
                    top_tokens=((), (5,), (97, 98)),
                    top_logprobs=((), (-1.0,), (-0.5, -2.0)),
                    ends=tuple(
                        End(sequence_id=sequence_id, reason=EndReason.LENGTH, num_output_tokens=1)
                        for sequence_id in (one, two, 999)
                    ),
                )
            )
            (of_a,), (of_b,) = await collect(a), await collect(b)
            assert (of_a.text, of_b.text) == ("a", "b")
            assert of_a.logprobs == (TokenLogprob(token_id=97, logprob=-0.5, top=((97, -0.5),)),)
            assert of_b.logprobs == ()

    run(test())


@pytest.mark.parametrize("reason", [EndReason.DEADLINE, EndReason.WORKER_LOST, EndReason.NON_FINITE])
def test_a_bad_end_is_raised_after_the_tokens_before_it(
    reason: EndReason, engine: EngineScript, frontend: Frontend
) -> None:
    async def test() -> None:
        async with frontend.open(request()) as stream:
            engine.tokens(engine.added[0].sequence_id, b"ab")
            engine.end(engine.added[0].sequence_id, reason, count=2)
            assert (await take(stream)).text == "ab"
            with pytest.raises(SequenceEndedError) as error:
                await anext(stream)
            assert error.value.reason is reason
        assert engine.cancelled == []
        assert frontend.num_live == 0

    run(test())


def test_a_lost_worker_is_explained(engine: EngineScript, byte_tokenizer: Tokenizer, model: ModelInfo) -> None:
    async def test() -> None:
        frontend = Frontend(
            tokenizer=byte_tokenizer, model=model, send=engine.send, why_unavailable=lambda: "it serves another model"
        )
        engine.deliver = frontend.deliver
        async with frontend.open(request("a")) as lost, frontend.open(request("b")) as late:
            engine.end(engine.added[0].sequence_id, EndReason.WORKER_LOST)
            engine.end(engine.added[1].sequence_id, EndReason.DEADLINE)
            with pytest.raises(SequenceEndedError, match="none came back in time: it serves another model"):
                await anext(lost)
            with pytest.raises(SequenceEndedError) as error:
                await anext(late)
            assert "another model" not in str(error.value)

    run(test())


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


def test_several_sequences_share_pieces_and_one_usage(engine: EngineScript, frontend: Frontend) -> None:
    async def test() -> None:
        async with frontend.open(request(sampling=SamplingInput(n=2))) as stream:
            one, two = (spec.sequence_id for spec in engine.added)
            engine.now_ns = 1_000_000_000
            engine.start(one, cached_tokens=2)
            engine.now_ns = 1_500_000_000
            engine.tokens(one, b"a")
            engine.start(two, cached_tokens=1)  # from the first sequence, not from the prefix cache
            assert (await anext(stream)).deltas == (Delta(index=0, text="a", token_ids=(97,)),)
            engine.now_ns = 2_000_000_000
            engine.update(sequence_ids=(two, one), token_ids=(FOX[1], ord("b")))
            engine.tokens(two, FOX[2:5])
            piece = await anext(stream)
            assert piece.usage is None
            assert piece.deltas == (
                Delta(index=0, text="b", token_ids=(98,)),
                Delta(index=1, text="🦊", token_ids=tuple(FOX[1:5])),
            )
            engine.end(one, EndReason.LENGTH, last=ord("c"), count=3)
            (delta,) = (piece := await anext(stream)).deltas
            assert (delta.index, delta.text, delta.end is not None, piece.usage) == (0, "c", True, None)
            engine.now_ns = 4_000_000_000
            engine.end(two, EndReason.STOP, last=EOS, stop_token_id=EOS, count=5)
            (delta,) = (piece := await anext(stream)).deltas
            assert (delta.index, delta.end and delta.end.reason) == (1, EndReason.STOP)
            assert piece.usage == Usage(
                prompt_tokens=3,
                cached_tokens=2,
                completion_tokens=8,
                queue_seconds=1.0,
                prefill_seconds=0.5,
                decode_seconds=2.5,
            )
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        assert engine.cancelled == []

    run(test())


@pytest.mark.parametrize("reason", [EndReason.DEADLINE, EndReason.WORKER_LOST, EndReason.NON_FINITE])
def test_a_bad_end_of_one_sequence_ends_the_request(
    reason: EndReason, engine: EngineScript, frontend: Frontend
) -> None:
    async def test() -> None:
        async with frontend.open(request("same", sampling=SamplingInput(n=4))) as stream:
            ids = [spec.sequence_id for spec in engine.added]
            engine.tokens(ids[0], b"ab")
            engine.end(ids[3], EndReason.LENGTH, last=ord("c"), count=1)
            ends = [End(sequence_id=ids[index], reason=reason, num_output_tokens=0) for index in (1, 2)]
            engine.update(ends=tuple(ends))  # two at once: the first counts, and none of them is cancelled
            assert engine.cancelled == [ids[0]]
            async with frontend.open(request("same")):  # its id is free again
                assert frontend.num_live == 2
                engine.tokens(ids[0], b"late")
                assert [(delta.index, delta.text) for delta in (await anext(stream)).deltas] == [(0, "ab"), (3, "c")]
                with pytest.raises(SequenceEndedError) as error:
                    await anext(stream)
                assert error.value.reason is reason
        assert engine.cancelled == [ids[0], engine.added[4].sequence_id]

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
