"""gRPC options, set alike on servers and channels of this service.

`min_ping_interval_without_data_ms` is the spelling that works; the one with "recv" in it is ignored. Pings are allowed
without calls and never counted as abuse, so a client's keepalive survives a long silent stream.
"""

from __future__ import annotations

from typing import Any

# A prompt of a million token ids takes 4 MB; more than this is refused by gRPC itself, before it is read.
_MAX_REQUEST_BYTES = 16 * 1024 * 1024
# A plan may admit several such prompts.
_MAX_PLAN_BYTES = 256 * 1024 * 1024

_BOTH: list[tuple[str, Any]] = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", _MAX_REQUEST_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    # Two processes on one port would split the requests between them without a word.
    ("grpc.so_reuseport", 0),
]

# Of front ends, which share one port on purpose: the kernel gives each new connection to one of them.
SHARED_SERVER_OPTIONS: list[tuple[str, Any]] = [
    *(option for option in SERVER_OPTIONS if option[0] != "grpc.so_reuseport"),
    ("grpc.so_reuseport", 1),
]

# From a front end to the server in the engine's process.
FORWARD_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", _MAX_REQUEST_BYTES),
    ("grpc.enable_http_proxy", 0),
]

WORKER_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    ("grpc.max_receive_message_length", _MAX_PLAN_BYTES),
    ("grpc.max_send_message_length", _MAX_PLAN_BYTES),
    # A worker that falls silent is noticed within 15 s; a dead process at once, by its closed connection. The ping that
    # goes unanswered is gRPC's own, whose patience is a minute unless ping_timeout_ms says otherwise.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A new channel is a new connection; else it would share that of the channel before.
    ("grpc.use_local_subchannel_pool", 1),
    # The scheduler itself decides how fast to try again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name this is also the time that an attempt to connect gets.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
