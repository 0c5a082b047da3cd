"""The channel between the engine's process and a front end: order, the peer's end, and a peer that does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scheduler.frontends.channel import Channel, ChannelError
from scheduler.messages import Cancel, StepUpdate


def with_pair(test: Callable[[Channel, Channel], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            one, other = socket.socketpair()
            channels = await Channel.open(one), await Channel.open(other)
            try:
                await test(*channels)
            finally:
                for channel in channels:
                    channel.close()

    asyncio.run(run())


def test_values_arrive_whole_and_in_order_both_ways() -> None:
    async def test(engine: Channel, frontend: Channel) -> None:
        updates = [StepUpdate(now_ns=step, token_ids=tuple(range(10_000))) for step in range(50)]
        for update in updates:
            engine.send(update)
        frontend.send(Cancel(sequence_id=1 << 33))
        assert [await frontend.receive() for _ in updates] == updates
        assert await engine.receive() == Cancel(sequence_id=1 << 33)

    with_pair(test)


def test_the_end_of_the_peer_is_noticed_after_what_it_said() -> None:
    async def test(engine: Channel, frontend: Channel) -> None:
        engine.send("last words")
        engine.close()
        assert await frontend.receive() == "last words"
        with pytest.raises(ChannelError, match="gone"):
            await frontend.receive()

    with_pair(test)


def send(channel: Channel, num_mebibytes: int) -> None:
    for _ in range(num_mebibytes):
        channel.send(bytes(1 << 20))


def test_a_peer_that_does_not_read_is_given_up_before_it_fills_the_memory() -> None:
    async def test(engine: Channel, frontend: Channel) -> None:
        for _ in range(60):
            engine.send(bytes(1 << 20))
        with pytest.raises(ChannelError, match="does not read"):
            send(engine, 10)
        with pytest.raises(ChannelError):
            engine.send("more")

    with_pair(test)
