"""A client that costs next to nothing, so that the figures are the server's: HTTP/2 over plain sockets.

It opens the flow-control windows as far as they go, stores what comes with the time of its arrival, and reads it only
after the run. It knows as much of HTTP/2 as gRPC's server makes it know (RFC 9113; header blocks that need no table,
RFC 7541 section 6.2.2).
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.serving.v1 import generation_pb2

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_MAX_WINDOW = 2**31 - 1
_METHOD = "/octavo.serving.v1.GenerationService/Generate"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(authority: str) -> bytes:
    pairs = {
        ":method": "POST",
        ":scheme": "http",
        ":path": _METHOD,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in pairs.items()
    )


@dataclass(slots=True)
class Received:
    """What one stream brought: tokens, messages and the greatest number of tokens in one of them."""

    token_ids: list[int] = field(default_factory=list)
    messages: int = 0
    largest: int = 0
    completion_tokens: int = 0


class Connection:
    """One connection with a number of calls that are all begun at once."""

    def __init__(self, port: int, requests: Sequence[generation_pb2.GenerateRequest]) -> None:
        self.num_open = len(requests)
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._pending = bytearray()
        self._bodies: dict[int, bytearray] = {}
        window = struct.pack(">HI", 4, _MAX_WINDOW)
        out = _PREFACE + _frame(_SETTINGS, 0, 0, window)
        out += _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _MAX_WINDOW - 65535))
        headers = _headers(f"127.0.0.1:{port}")
        for index, request in enumerate(requests):
            message = request.SerializeToString()
            stream = 2 * index + 1
            self._bodies[stream] = bytearray()
            out += _frame(_HEADERS, _END_HEADERS, stream, headers)
            out += _frame(_DATA, _END_STREAM, stream, struct.pack(">BI", 0, len(message)) + message)
        self._socket.sendall(out)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def read(self) -> int:
        """Takes what is there. Returns the bytes; raises ConnectionError if the server has left."""
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        pending = self._pending
        pending += data
        begin, end = 0, len(pending)
        while end - begin >= 9:
            length = int.from_bytes(pending[begin : begin + 3], "big")
            if end - begin < 9 + length:
                break
            kind, flags, stream = pending[begin + 3], pending[begin + 4], pending[begin + 8]
            if kind == _DATA:
                stream = int.from_bytes(pending[begin + 5 : begin + 9], "big")
                self._bodies[stream] += pending[begin + 9 : begin + 9 + length]
            elif kind == _HEADERS and flags & _END_STREAM:
                self.num_open -= 1
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                payload = bytes(pending[begin + 9 : begin + 9 + length]) if kind == _PING else b""
                self._socket.sendall(_frame(kind, _ACK, 0, payload))
            begin += 9 + length
        del pending[:begin]
        return len(data)

    def close(self) -> None:
        """Ends it."""
        self._socket.close()

    def received(self) -> list[Received]:
        """What its streams brought, read now."""
        return [_read_body(body) for body in self._bodies.values()]


def _read_body(body: bytearray) -> Received:
    received, position = Received(), 0
    while position < len(body):
        length = int.from_bytes(body[position + 1 : position + 5], "big")
        message = generation_pb2.GenerateResponse.FromString(bytes(body[position + 5 : position + 5 + length]))
        tokens = [token_id for delta in message.deltas for token_id in delta.token_ids]
        received.token_ids += tokens
        received.messages += 1
        received.largest = max(received.largest, len(tokens))
        received.completion_tokens = message.usage.completion_tokens or received.completion_tokens
        position += 5 + length
    return received


def run(connections: Sequence[Connection], limit_s: float) -> None:
    """Reads until every call has ended. Raises TimeoutError."""
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection, selectors.EVENT_READ, connection)
    give_up = time.monotonic() + limit_s
    while any(connection.num_open for connection in connections):
        if time.monotonic() > give_up:
            raise TimeoutError(f"{sum(connection.num_open for connection in connections)} calls have not ended")
        for key, _ in selector.select(timeout=1):
            key.data.read()
        time.sleep(0.002)  # reads many messages at a time, as a slow network would deliver them
