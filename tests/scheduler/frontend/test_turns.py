"""Turns: first come, first served, and others get on in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scheduler.frontend.turns import Turns

NUM_STREAMS = 100


def on_loop(test: Callable[[Turns], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await test(Turns())

    asyncio.run(limited())


async def turn(turns: Turns) -> None:
    waiter = asyncio.get_running_loop().create_future()
    turns.ask(waiter)
    await waiter


def test_everybody_gets_a_turn_in_the_order_of_asking() -> None:
    async def test(turns: Turns) -> None:
        order: list[tuple[int, int]] = []

        async def stream(number: int) -> None:
            for time in range(3):
                await turn(turns)
                order.append((time, number))

        await asyncio.gather(*map(stream, range(NUM_STREAMS)))
        assert order == [(time, number) for time in range(3) for number in range(NUM_STREAMS)]

    on_loop(test)


def test_the_engine_gets_on_within_a_round() -> None:
    async def test(turns: Turns) -> None:
        turns_when_woken: list[int] = []
        done = 0

        async def stream() -> None:
            nonlocal done
            await turn(turns)
            done += 1

        async def engine() -> None:
            while done < NUM_STREAMS:
                turns_when_woken.append(done)
                await asyncio.sleep(0)

        await asyncio.gather(engine(), *(stream() for _ in range(NUM_STREAMS)))
        steps = [after - before for before, after in itertools.pairwise(turns_when_woken)]
        assert max(steps) <= 16

    on_loop(test)


def test_a_caller_that_left_is_passed_over_and_turns_go_on() -> None:
    async def test(turns: Turns) -> None:
        left = asyncio.get_running_loop().create_future()
        turns.ask(left)
        left.cancel()
        await turn(turns)
        with pytest.raises(asyncio.CancelledError):
            await left
        for _ in range(3):  # also after a rest with nobody waiting
            await asyncio.sleep(0.01)
            await turn(turns)

    on_loop(test)
