"""The channel options that both clients use. The server sets their counterparts."""

from __future__ import annotations

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # a prompt of token ids at a context of millions

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # A peer that vanished without closing the connection is noticed within 40 s, in quiet streams too.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
