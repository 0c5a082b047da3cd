"""The channels of the clients: their options, whose counterparts the server sets, and how calls begin."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from clients.errors import OctavoError

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # a prompt of token ids at a context of millions

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # A peer that vanished without closing the connection is noticed within 40 s, in quiet streams too. The ping's own
    # timeout is a minute, and keepalive waits for it, too.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A server that is starting is found soon after it listens; the default pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # The server is addressed directly: a proxy from http_proxy could not reach a loopback address.
    ("grpc.enable_http_proxy", 0),
)

# To gRPC a deadline that 64 bits of nanoseconds do not hold is one that has passed.
_LONGEST_TIMEOUT_S = 1e9


def begin(method: Any, request: object, timeout: float | None) -> Any:
    """The call of a stub's method; of a synchronous unary one its response. Raises OctavoError on a closed channel."""
    try:
        return method(request, timeout=None if timeout is None else min(timeout, _LONGEST_TIMEOUT_S))
    except (ValueError, grpc.aio.UsageError):  # of a synchronous channel, and of an asynchronous one
        raise OctavoError(grpc.StatusCode.CANCELLED, "the client was closed") from None
