"""How calls of the clients end: closed, cancelled, at their deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import clients
from clients import AdminClient, AsyncClient, Client
from octavo.serving.v1 import generation_pb2
from tests.clients.peer import Peer, answer, response

CANCEL_CAP_S = 30


async def endless(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
    """One delta and then nothing until the call is cancelled."""
    yield response("a", (1,))
    await asyncio.Event().wait()


def test_a_timeout_is_the_deadline_of_the_call(peer: Peer, target: str) -> None:
    peer.script = endless
    with Client(target) as client, pytest.raises(clients.DeadlineError):
        client.complete("x", timeout=0.2)
    assert peer.cancelled.wait(CANCEL_CAP_S)


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


def test_dropping_an_asynchronous_stream_cancels_the_call(peer: Peer, target: str) -> None:
    peer.script = endless

    async def run() -> None:
        async with AsyncClient(target) as client:
            async for _ in client.generate("x"):
                break
            assert await asyncio.to_thread(peer.cancelled.wait, CANCEL_CAP_S)

    asyncio.run(run())


def test_reading_on_after_a_cancelled_read_fails(peer: Peer, target: str) -> None:
    peer.script = endless

    async def run() -> None:
        async with AsyncClient(target) as client:
            stream = client.generate("x")
            await anext(stream)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
            for _ in range(2):
                with pytest.raises(clients.OctavoError) as caught:
                    await anext(stream)
                assert caught.value.code is grpc.StatusCode.CANCELLED
            await stream.aclose()
            assert await _texts(stream) == []

    asyncio.run(run())


def test_closing_the_client_fails_its_calls(peer: Peer, target: str) -> None:
    async def run() -> None:
        client = AsyncClient(target)
        call = asyncio.create_task(client.score_prompt("x"))
        assert await asyncio.to_thread(peer.requested.wait, CANCEL_CAP_S)
        await client.aclose()
        for later in (call, client.complete("x"), client.health()):
            with pytest.raises(clients.OctavoError) as caught:
                await later
            assert caught.value.code is grpc.StatusCode.CANCELLED

    asyncio.run(run())


def test_a_closed_client_fails_its_calls(target: str) -> None:
    client, admin = Client(target), AdminClient(target)
    client.close()
    admin.close()
    for call in (lambda: client.complete("x"), client.health, admin.drop_prefix):
        with pytest.raises(clients.OctavoError) as caught:
            call()
        assert caught.value.code is grpc.StatusCode.CANCELLED


def test_an_asynchronous_client_is_made_where_its_loop_runs(target: str) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        AsyncClient(target)


def test_a_timeout_may_be_longer_than_grpc_can_count(peer: Peer, target: str) -> None:
    peer.script = answer
    with Client(target) as client:
        for timeout in (float("inf"), 1e18):
            assert client.complete("x", timeout=timeout).text == "Héy"
