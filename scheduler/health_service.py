"""What the scheduler says of itself: grpc.health.v1, and a refusal of requests until there is a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

_RESPONSE = health_pb2.HealthCheckResponse


class HealthReporter:
    """Overall and per service: SERVING while a session with the worker is open."""

    def __init__(self, server: grpc.aio.Server, services: Sequence[str]) -> None:
        self._services = services
        self._servicer = health.aio.HealthServicer()
        self._tasks: set[asyncio.Task[None]] = set()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self.set(False)

    def set(self, serving: bool) -> None:
        """Statuses of a server that drains stay NOT_SERVING, whatever is set."""
        status = _RESPONSE.SERVING if serving else _RESPONSE.NOT_SERVING
        self._start(*(self._servicer.set(name, status) for name in ("", *self._services)))

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
    await context.abort(grpc.StatusCode.UNAVAILABLE, "no worker has loaded its model yet; try again later")
