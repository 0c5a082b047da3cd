"""gRPC over plain sockets, for the client of this benchmark.

It opens the flow-control windows as far as they go, and knows as much of HTTP/2 as gRPC's server makes it know (RFC
9113; header blocks that need no table, RFC 7541 section 6.2.2).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence

from bench.fanout.client import Body, receive
from bench.fanout.load import Arrival, Load
from octavo.serving.v1 import generation_pb2, sampling_pb2

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_MAX_WINDOW = 2**31 - 1
_METHOD = "/octavo.serving.v1.GenerationService/Generate"
# A token of the fake worker is the number of its step, modulo this.
_NUM_TOKEN_IDS = 32768


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


class GrpcConnection:
    """One connection with some of a load's streams, whose calls are all begun at once."""

    def __init__(self, port: int, load: Load, streams: Sequence[int]) -> None:
        self.num_open = 0
        self.bodies: list[Body] = []
        self._load = load
        self._header_block = _headers(f"127.0.0.1:{port}")
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._pending = bytearray()
        self._calls: dict[int, tuple[Body, int, int]] = {}  # by HTTP/2 stream: its body, our stream, which request
        self._next_id = 1
        window = struct.pack(">HI", 4, _MAX_WINDOW)
        out = _PREFACE + _frame(_SETTINGS, 0, 0, window)
        out += _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _MAX_WINDOW - 65535))
        out += b"".join([self._call(stream, 0) for stream in streams])
        self._socket.sendall(out)
        self._socket.setblocking(False)

    def _call(self, stream: int, request: int) -> bytes:
        """The frames of one call."""
        body = Body(self._load.num_tokens(stream, request))
        self.bodies.append(body)
        self.num_open += 1
        number, self._next_id = self._next_id, self._next_id + 2
        self._calls[number] = body, stream, request
        params = sampling_pb2.SamplingParams(temperature=0, max_tokens=body.num_tokens, ignore_eos=True)
        prompt = generation_pb2.TokenIds(ids=[1 + stream])
        message = generation_pb2.GenerateRequest(token_ids=prompt, sampling_params=params).SerializeToString()
        return _frame(_HEADERS, _END_HEADERS, number, self._header_block) + _frame(
            _DATA, _END_STREAM, number, struct.pack(">BI", 0, len(message)) + message
        )

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def read(self, now_s: float, *, go_on: bool) -> None:
        """As in `Connection`."""
        pending = self._pending
        pending += receive(self._socket)
        out = b""
        begin, end = 0, len(pending)
        while end - begin >= 9:
            length = int.from_bytes(pending[begin : begin + 3], "big")
            if end - begin < 9 + length:
                break
            kind, flags = pending[begin + 3], pending[begin + 4]
            if kind == _DATA:
                stream = int.from_bytes(pending[begin + 5 : begin + 9], "big")
                self._calls[stream][0].add(pending[begin + 9 : begin + 9 + length], now_s)
            elif kind == _HEADERS and flags & _END_STREAM:
                self.num_open -= 1
                _, ours, request = self._calls.pop(int.from_bytes(pending[begin + 5 : begin + 9], "big"))
                if go_on:
                    out += self._call(ours, request + 1)
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                payload = bytes(pending[begin + 9 : begin + 9 + length]) if kind == _PING else b""
                out += _frame(kind, _ACK, 0, payload)
            begin += 9 + length
        del pending[:begin]
        if out:
            self._socket.sendall(out)

    def close(self) -> None:
        """Ends it."""
        self._socket.close()


def read_arrivals(body: Body, first_step: int, whole: bool) -> Iterator[Arrival]:
    """The messages of one answer. Raises ValueError unless its tokens are those of consecutive steps and, if it is to
    be whole, as many as were asked for. first_step: one before all of them, by less than 32768 steps."""
    position, seen, completion_tokens = 0, 0, 0
    expected = None
    while position < len(body.data):
        end = position + 5 + int.from_bytes(body.data[position + 1 : position + 5], "big")
        if end > len(body.data):
            break
        message = generation_pb2.GenerateResponse.FromString(bytes(body.data[position + 5 : end]))
        tokens = [token_id for delta in message.deltas for token_id in delta.token_ids]
        if expected is None and tokens:
            expected = tokens[0]
        for token_id in tokens:
            if token_id != expected:
                raise ValueError(f"token {seen} is {token_id}, not {expected}: lost, doubled or out of order")
            expected = (expected + 1) % _NUM_TOKEN_IDS
            seen += 1
        completion_tokens = message.usage.completion_tokens or completion_tokens
        if tokens:
            step = first_step + (tokens[-1] - first_step) % _NUM_TOKEN_IDS
            yield Arrival(body.time_of(end), len(tokens), step)
        position = end
    if whole and not seen == completion_tokens == body.num_tokens:
        raise ValueError(f"{seen} tokens came, usage says {completion_tokens}, asked for {body.num_tokens}")
