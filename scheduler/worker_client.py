"""The scheduler's end of the step plane: finds out what a worker can do, and holds one session with it.

A session is one Execute stream. It ends once, for whatever reason, and is never revived: a new one begins from nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence

import grpc

from octavo.worker.v1alpha1 import worker_pb2 as pb
from octavo.worker.v1alpha1 import worker_pb2_grpc
from scheduler import wire
from scheduler.channel import WORKER_CHANNEL_OPTIONS
from scheduler.core.plan import StepPlan
from scheduler.core.result import StepResult

_OPEN_TIMEOUT_S = 30.0

_Call = grpc.aio.StreamStreamCall[pb.ExecuteRequest, pb.ExecuteResponse]


class WorkerUnavailableError(Exception):
    """The worker cannot be reached, or does not open a session now."""


class WorkerSession:
    """One open Execute stream.

    Plans are written by a task of their own, in order: a worker that stops reading must not stop the engine.
    Results are collected in order and marked with `epoch`, which the owner sets before it sends the first plan; `wake`
    is called whenever one has come and when the stream has ended, after which `ended` says why, and `ended_here`
    whether it was this side that ended it.
    """

    def __init__(self, call: _Call, wake: Callable[[], None]) -> None:
        self.epoch = 0
        self.ended: str | None = None
        self.ended_here = False
        self._call = call
        self._wake = wake
        self._results: deque[StepResult] = deque()
        self._plans: asyncio.Queue[Sequence[StepPlan]] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

    def send(self, plans: Sequence[StepPlan]) -> None:
        """Has plans written as one message, after those before them. A stream that breaks is noticed by the reader."""
        self._plans.put_nowait(plans)

    def take_results(self) -> list[StepResult]:
        """The results that came since the last call, in order."""
        results = list(self._results)
        self._results.clear()
        return results

    def end(self, why: str) -> None:
        """Ends the session from this side."""
        if self.ended is None:
            self.ended, self.ended_here = why, True
        self._call.cancel()

    async def wait_ended(self) -> None:
        """Returns once the stream has ended."""
        await asyncio.wait([self._reader])
        self._writer.cancel()
        await asyncio.wait([self._writer])

    async def _write(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._call.write(wire.plans_message(await self._plans.get()))

    async def _read(self) -> None:
        why = "the worker ended the stream"
        try:
            while isinstance(response := await self._call.read(), pb.ExecuteResponse):
                if response.WhichOneof("kind") == "results":
                    self._results += [wire.read_result(result, self.epoch) for result in response.results.results]
                    self._wake()
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name}: {error.details()}"
        except ValueError as error:
            why = f"unreadable result: {error}"
            self._call.cancel()
        finally:
            if self.ended is None:
                self.ended = why
            self._wake()


class WorkerClient:
    """A channel to one worker."""

    def __init__(self, address: str) -> None:
        self.address = address
        # Fences off the streams of schedulers that were started earlier, however often either of them reconnects.
        self._group_epoch = time.time_ns()
        self._open_channel()

    def _open_channel(self) -> None:
        self._channel = grpc.aio.insecure_channel(self.address, options=WORKER_CHANNEL_OPTIONS)
        self._stub = worker_pb2_grpc.WorkerServiceStub(self._channel)

    async def reconnect(self) -> None:
        """Leaves the connection, whatever state it is in, for a new one. Calls under way fail."""
        old = self._channel
        self._open_channel()
        await old.close()

    async def capacity(self, timeout_s: float) -> wire.WorkerCapacity:
        """Asks the worker what it can do.

        Raises WorkerUnavailableError if it does not answer in time, CapacityError if it cannot be driven.
        """
        try:
            response = await self._stub.GetCapacity(pb.GetCapacityRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise WorkerUnavailableError(f"{error.code().name}: {error.details()}") from error
        return wire.read_capacity(response)

    async def open_session(
        self, capacity: wire.WorkerCapacity, limits: wire.SessionLimits, wake: Callable[[], None]
    ) -> WorkerSession:
        """Opens an Execute stream.

        Raises WorkerUnavailableError if the worker refuses, as it does while a scheduler that was started later has it,
        or does not answer in time.
        """
        call = self._stub.Execute()
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await call.write(wire.open_message(capacity, limits, self._group_epoch))
                response = await call.read()
        except grpc.aio.AioRpcError as error:
            raise WorkerUnavailableError(f"{error.code().name}: {error.details()}") from error
        except (TimeoutError, asyncio.InvalidStateError) as error:
            call.cancel()
            raise WorkerUnavailableError("the worker did not open the stream in time") from error
        if response is grpc.aio.EOF or response.WhichOneof("kind") != "opened":
            detail = await call.details() if response is grpc.aio.EOF else "the worker did not answer Open with Opened"
            call.cancel()
            raise WorkerUnavailableError(detail or "the worker closed the stream")
        return WorkerSession(call, wake)

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()
