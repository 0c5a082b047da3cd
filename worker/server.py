"""The gRPC server of a worker: the step plane, health and reflection, from bind to shutdown.

Health is NOT_SERVING from the first moment on and SERVING once the model is loaded, for the server as a whole ("") and
for the service by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octavo.worker.v1alpha1 import worker_pb2_grpc
from worker.assembly import LoadedWorker
from worker.executor import Executor
from worker.listen import ListenError, check_free, listen_address
from worker.metrics import StepCounters
from worker.service import SERVICE_NAME, WorkerService

log = structlog.get_logger()

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Schedulers may ping through a long silence. This is the spelling that works: the one with "recv" is ignored.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # A scheduler whose machine went silent is noticed within 15 s, and its rows are forgotten. The ping's own timeout
    # is a minute, and keepalive waits for it, too.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    # Two workers on one port would split the streams between them without a word.
    ("grpc.so_reuseport", 0),
]

_STOP_GRACE_S = 2.0


class WorkerServer:
    """A server that listens at once and serves when it is given a loaded worker. Owns the executor thread.

    on_out_of_memory: as in `WorkerService`.
    """

    def __init__(self, on_out_of_memory: Callable[[], None]) -> None:
        self.executor = Executor()
        self._service = WorkerService(self.executor, on_out_of_memory)
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=_OPTIONS)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    @property
    def counters(self) -> StepCounters:
        """What the sessions have counted."""
        return self._service.counters

    @property
    def loaded(self) -> bool:
        """Whether the step plane is open."""
        return self._service.loaded

    async def listen(self, host: str, port: int) -> int:
        """Starts the server and returns its port, the one it got if `port` is 0. Raises ListenError."""
        check_free(host, port)
        address = listen_address(host, port)
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {address}: {error}") from error
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()
        return bound

    async def serve(self, worker: LoadedWorker) -> None:
        """Opens the step plane."""
        self._service.serve(worker.runner, worker.capacity)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> bool:
        """Ends the live stream, the server and the executor. False if the executor thread still runs, as it does while
        a model is loading: it cannot be interrupted."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._service.shut_down()
        await self._server.stop(_STOP_GRACE_S)
        return await self.executor.stop(_STOP_GRACE_S)

    async def _set_health(self, status: int) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)
