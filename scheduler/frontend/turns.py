"""Whose turn it is to send what has come for it.

A message costs a server ten times what a token in it costs, so under load fewer and bigger messages are what keeps up.
Streams that have news wait here for their turn. They are let go in rounds, a few at a time, so that the engine gets
its own turn in between; and between two rounds there is a rest as long as the last round took. So with few streams
every token goes out at once, and with many a stream's next message holds what came during a round and a rest. Sending
takes at most about half of the event loop's time, however many streams there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

# Sending takes 50 to 100 microseconds, and the engine is held up by one such slice. So are new calls: gRPC's server
# takes in one per turn of the event loop, and with slices of 16 they came too slowly to keep a busy server's rows full.
_SLICE: Final = 4
# Of the round's time; more is less work per token and more delay.
_REST: Final = 1.0
# A stalled machine or debugger must not make the rest last.
_LONGEST_REST_S: Final = 0.1


class Turns:
    """Lets futures of one event loop go. To be used on that loop."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Future[None]] = deque()
        self._num_left = 0
        self._begin_s = self._rest_until_s = 0.0
        self._active = False

    def ask(self, waiter: asyncio.Future[None]) -> None:
        """Sets the future's result when its turn comes. Cancelled ones are passed over."""
        self._ready.append(waiter)
        if not self._active:
            self._active = True
            self._rest()

    def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._rest_until_s:
            loop.call_soon(self._begin)
        else:
            loop.call_at(self._rest_until_s, self._begin)

    def _begin(self) -> None:
        self._begin_s = asyncio.get_running_loop().time()
        self._num_left = len(self._ready)
        self._slice()

    def _slice(self) -> None:
        """Lets a few go. Called again once they have sent, because the loop calls in the order of asking."""
        ready = self._ready
        count = min(self._num_left, _SLICE)
        self._num_left -= count
        for _ in range(count):
            waiter = ready.popleft()
            if not waiter.done():
                waiter.set_result(None)
        asyncio.get_running_loop().call_soon(self._slice if self._num_left else self._end)

    def _end(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._rest_until_s = now_s + min(_REST * (now_s - self._begin_s), _LONGEST_REST_S)
        if self._ready:
            self._rest()
        else:
            self._active = False
