"""What the scheduler says of itself: grpc.health.v1, and a refusal of requests until there is a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from scheduler.frontend.errors import StartingError, status_of
from scheduler.frontend.statuses import abort, to_rpc_status

_RESPONSE = health_pb2.HealthCheckResponse


WORKER_PREFIX = "worker/"
"""A worker's health is asked for under this and its address, as in worker/10.0.0.7:50052."""


class HealthReporter:
    """Health means progress. Overall and per service: SERVING while some worker makes progress and none has something
    to run and does not run it. Per worker: SERVING while it has a session and makes progress."""

    def __init__(self, server: grpc.aio.Server, services: Sequence[str]) -> None:
        self._services = services
        self._servicer = health.aio.HealthServicer()
        self._tasks: set[asyncio.Task[None]] = set()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self.set("", False)

    def set(self, worker: str, serving: bool | None) -> None:
        """worker: its address, or "" for the server as a whole. None: there is no such worker any more. Statuses of a
        server that drains stay NOT_SERVING, whatever is set."""
        status = {True: _RESPONSE.SERVING, False: _RESPONSE.NOT_SERVING, None: _RESPONSE.SERVICE_UNKNOWN}[serving]
        names = (WORKER_PREFIX + worker,) if worker else ("", *self._services)
        self._start(*(self._servicer.set(name, status) for name in names))

    def drain(self) -> None:
        """NOT_SERVING from now on."""
        self._start(self._servicer.enter_graceful_shutdown())

    def _start(self, *changes: Coroutine[Any, Any, None]) -> None:
        for change in changes:
            task = asyncio.create_task(change)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class StartingUp(grpc.GenericRpcHandler):
    """Answers UNAVAILABLE for the given services until `ready` is set: no request can be validated before a worker has
    said what it can do, but a port that accepts connections and says nothing would look like a hang."""

    def __init__(self, services: Sequence[str]) -> None:
        self.ready = False
        self._prefixes = tuple(f"/{name}/" for name in services)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """None lets the next handler take the call."""
        if self.ready or not handler_call_details.method.startswith(self._prefixes):
            return None
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
    error = StartingError()
    await abort(context, to_rpc_status(error, status_of(error)))
