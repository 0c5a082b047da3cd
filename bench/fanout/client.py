"""A client that costs next to nothing, so that the figures are the server's.

It stores what comes with the time at which it came, and reads it only after the run. A `Connection` is one socket; what
a protocol is like is known to `http2.py` and `http1.py`.
"""

from __future__ import annotations

import selectors
import socket
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

# Between two looks at the sockets: reads many pieces at a time, as a slow network would deliver them.
_PAUSE_S = 0.005


class Body:
    """What has come of one answer."""

    __slots__ = ("_ends", "_times", "data", "num_tokens")

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.data = bytearray()
        self._ends = array("Q")
        self._times = array("d")

    def add(self, data: bytes | bytearray, now_s: float) -> None:
        """More of it."""
        self.data += data
        self._ends.append(len(self.data))
        self._times.append(now_s)

    def time_of(self, end: int) -> float:
        """When the byte before this place came."""
        return self._times[bisect_left(self._ends, end)]


class Connection(Protocol):
    """num_open: answers that have not ended. bodies: of all requests so far, those of one stream in order."""

    num_open: int
    bodies: list[Body]

    def fileno(self) -> int:
        """For a selector."""

    def read(self, now_s: float, *, go_on: bool) -> None:
        """Takes what is there. go_on: streams whose requests end begin others. Raises ConnectionError if the server has
        left."""

    def close(self) -> None:
        """Ends it."""


def receive(sock: socket.socket) -> bytes:
    """What a socket has that said that it has something. Raises ConnectionError at its end."""
    data = sock.recv(1 << 20)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data


def run(connections: Sequence[Connection], until_s: float, limit_s: float, *, replace: bool) -> None:
    """Reads until every answer has ended, but not past `limit_s`, on the monotonic clock. replace: until `until_s`
    streams whose requests end begin others."""
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection, selectors.EVENT_READ, connection)
    while any(connection.num_open for connection in connections):
        now_s = time.monotonic()
        if now_s > limit_s:
            return
        for key, _ in selector.select(timeout=1):
            key.data.read(time.monotonic(), go_on=replace and now_s < until_s)
        time.sleep(_PAUSE_S)
