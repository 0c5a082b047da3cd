"""What the tests of the front end's streams share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from scheduler.frontend.request import GenerateInput, Prompt, TokenPrompt
from scheduler.frontend.sequence_output import Delta
from scheduler.frontend.stream import Stream
from tests.oracle.tokenizer import byte_ids

FOX = byte_ids("a🦊b")


def request(request_id: str = "r", prompt: Prompt | None = None, **fields: Any) -> GenerateInput:
    return GenerateInput(request_id=request_id, prompt=prompt or TokenPrompt(ids=(1, 2, 3)), **fields)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def turns(count: int = 5) -> None:
    """Lets every task that can run do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def collect(stream: Stream) -> list[Delta]:
    return [delta async for piece in stream for delta in piece.deltas]


async def take(stream: Stream) -> Delta:
    """The next piece, of one sequence."""
    (delta,) = (await anext(stream)).deltas
    return delta
