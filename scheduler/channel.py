"""gRPC options, set alike on servers and channels of this service.

`min_ping_interval_without_data_ms` is the spelling that works; the one with "recv" in it is ignored. Pings are allowed
without calls and never counted as abuse, so a client's keepalive survives a long silent stream.
"""

from __future__ import annotations

from typing import Any

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_BOTH: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    # Two processes on one port would split the requests between them without a word.
    ("grpc.so_reuseport", 0),
]

WORKER_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    # A worker whose machine went silent is noticed within 15 s; a dead process at once, by its closed connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The scheduler itself decides how fast to try again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
