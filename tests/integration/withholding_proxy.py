"""A gRPC proxy between a scheduler and a worker that makes the pipeline as deep as it can be.

It forwards GetCapacity and Execute as they are, but keeps result k back until plan k+1 has arrived: a scheduler that
has two plans in flight then always plans without the newest result. Where no further plan comes, because there is
nothing to plan without that result (or because only one plan may be in flight), the result goes on after FALLBACK_S.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import grpc.aio

from octavo.worker.v1alpha1 import worker_pb2_grpc

FALLBACK_S = 0.1
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]


class WithholdingProxy(worker_pb2_grpc.WorkerServiceServicer):
    """Serves WorkerService on `address` from a thread with its own event loop, between enter and exit.

    released_by_plan, released_by_time: results that went on because the next plan had arrived, and because none came.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._stop = asyncio.Event()
        self._stub: Any = None
        self.released_by_plan = 0
        self.released_by_time = 0

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(30):
            raise TimeoutError("the proxy did not start within 30 s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        server = grpc.aio.server(options=_OPTIONS)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, server)
        self._port = server.add_insecure_port("127.0.0.1:0")
        async with grpc.aio.insecure_channel(self._worker, options=_OPTIONS) as channel:
            self._stub = worker_pb2_grpc.WorkerServiceStub(channel)
            await server.start()
            self._ready.set()
            await self._stop.wait()
            await server.stop(None)

    async def GetCapacity(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the RPC
        """Forwards the call, its error too."""
        try:
            return await self._stub.GetCapacity(request, timeout=context.time_remaining())
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")

    async def Execute(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Forwards plans at once and results with the next plan."""
        newest_plan = 0
        arrived = asyncio.Condition()

        async def plans() -> AsyncIterator[Any]:
            nonlocal newest_plan
            async for request in requests:
                if request.WhichOneof("kind") == "plans":
                    async with arrived:
                        newest_plan = request.plans.plans[-1].step_id
                        arrived.notify_all()
                yield request

        call = self._stub.Execute(plans())
        try:
            async for response in call:
                if response.WhichOneof("kind") == "results":
                    await self._withhold(arrived, lambda step=response.results.results[-1].step_id: newest_plan > step)
                yield response
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()

    async def _withhold(self, arrived: asyncio.Condition, next_plan_arrived: Any) -> None:
        try:
            async with arrived, asyncio.timeout(FALLBACK_S):
                await arrived.wait_for(next_plan_arrived)
            self.released_by_plan += 1
        except TimeoutError:
            self.released_by_time += 1
