"""What a request's reader gets, and when, with an engine that is driven by hand."""

from __future__ import annotations

import asyncio

import pytest

from scheduler.core.result import End, EndReason
from scheduler.frontend.errors import SequenceEndedError
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.request import SamplingInput, TextPrompt
from scheduler.frontend.sequence_output import Delta, TokenLogprob
from scheduler.frontend.stream import Usage
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.messages import Started, StepUpdate
from tests.oracle.tokenizer import EOS, byte_ids
from tests.scheduler.frontend.engine_script import EngineScript
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
