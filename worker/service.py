"""The servicer of the step plane: GetCapacity and Execute.

One stream is live at a time; one with the same epoch or a higher one takes its place. The handler of a stream reads
plans in a task of its own, so that plan k+1 is queued while plan k runs, and writes results as they are ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import structlog

from octavo.worker.v1alpha1 import worker_pb2 as pb
from octavo.worker.v1alpha1 import worker_pb2_grpc as pb_grpc
from worker import wire
from worker.executor import Executor
from worker.metrics import StepCounters
from worker.runner import Runner
from worker.session import (
    IncompatibleError,
    OpenError,
    Session,
    ShutdownError,
    StepError,
    SupersededError,
    check_open,
)
from worker.step import Capacity, PlanError

log = structlog.get_logger()

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["WorkerService"].full_name

_Context = grpc.aio.ServicerContext[pb.ExecuteRequest, pb.ExecuteResponse]

_STATUS = {
    PlanError: grpc.StatusCode.INVALID_ARGUMENT,
    OpenError: grpc.StatusCode.INVALID_ARGUMENT,
    IncompatibleError: grpc.StatusCode.FAILED_PRECONDITION,
    SupersededError: grpc.StatusCode.ABORTED,
    StepError: grpc.StatusCode.INTERNAL,
    ShutdownError: grpc.StatusCode.UNAVAILABLE,
}


class WorkerService(pb_grpc.WorkerServiceServicer):
    """Serves one runner, once `serve` was called; before that every call is UNAVAILABLE.

    on_out_of_memory: called when memory ran out outside a step, or is gone that a session with at least these limits
    had before. A step that lacks memory fails by itself; here nobody knows what is left undone, and only a new process
    has the memory again. A session that asks for more than was ever there is refused, and the worker lives.
    """

    def __init__(self, executor: Executor, on_out_of_memory: Callable[[], None]) -> None:
        self._executor = executor
        self._on_out_of_memory = on_out_of_memory
        self.counters = StepCounters()
        self._loaded: tuple[Runner, Capacity] | None = None
        self._live: Session | None = None
        # num_rows and max_model_len that there was memory for: nearly always those of one scheduler.
        self._opened: set[tuple[int, int]] = set()

    @property
    def loaded(self) -> bool:
        """Whether there is a model."""
        return self._loaded is not None

    def serve(self, runner: Runner, capacity: Capacity) -> None:
        """The model is loaded."""
        self._loaded = runner, capacity

    def shut_down(self) -> None:
        """Refuses new streams and ends the live one."""
        self._loaded = None
        if self._live is not None:
            self._live.end(ShutdownError("the worker shuts down"))

    async def GetCapacity(  # noqa: N802 -- the name is the protocol's
        self,
        request: pb.GetCapacityRequest,
        context: grpc.aio.ServicerContext[pb.GetCapacityRequest, pb.GetCapacityResponse],
    ) -> pb.GetCapacityResponse:
        """See the protocol."""
        if self._loaded is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the model is not loaded")
        return wire.write_capacity(self._loaded[1])

    async def Execute(  # noqa: N802 -- the name is the protocol's
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: _Context
    ) -> None:
        """See the protocol."""
        try:
            await self._execute(request_iterator, context)
        except MemoryError:
            self._on_out_of_memory()
            raise

    async def _execute(self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: _Context) -> None:
        try:
            session = await self._open(request_iterator)
        except (OpenError, IncompatibleError, ShutdownError) as error:
            await self._abort(context, error)
        log.info("stream opened", epoch=session.epoch, peer=context.peer())
        reader = asyncio.create_task(_read_plans(request_iterator, session))
        end: Exception | None = None
        try:
            # A step of the stream before may still run, or hang: what is sent to us meanwhile would wait behind it.
            await self._executor.call(lambda: None)
            await context.write(wire.write_opened(session.epoch))
            while (outcome := await session.next_outcome()) is not None:
                if isinstance(outcome, MemoryError):
                    raise outcome
                if isinstance(outcome, Exception):
                    end = outcome
                    break
                await context.write(wire.write_results(outcome))
        except MemoryError as error:
            end = error
            raise
        finally:
            session.end(None)
            reader.cancel()
            if self._live is session:
                self._live = None
            log.info("stream ended", epoch=session.epoch, reason=_reason(end))
        if end is not None:
            await self._abort(context, end)

    async def _open(self, requests: AsyncIterator[pb.ExecuteRequest]) -> Session:
        """The session that the stream's first message asks for, now the live one."""
        first = await anext(requests, pb.ExecuteRequest())
        if first.WhichOneof("kind") != "open":
            raise OpenError(f"the first message is {first.WhichOneof('kind') or 'empty'}, must be open")
        if self._loaded is None:
            raise ShutdownError("the model is not loaded")
        runner, capacity = self._loaded
        opening = wire.read_open(first.open)
        limits = check_open(opening, capacity)
        if self._live is not None and opening.group_epoch < self._live.epoch:
            raise IncompatibleError(
                f"open.group_epoch is {opening.group_epoch}, a stream of the higher epoch {self._live.epoch} is live"
            )
        try:
            session = Session(opening, limits, runner, self._executor, self.counters)
        except MemoryError as error:
            if any(limits.num_rows <= rows and limits.max_model_len <= tokens for rows, tokens in self._opened):
                raise
            size = f"{limits.num_rows} rows of {limits.max_model_len} tokens"
            raise OpenError(f"open.num_rows and open.max_model_len ask for {size}: no memory for these") from error
        self._opened.add((limits.num_rows, limits.max_model_len))
        if self._live is not None:
            self._live.end(SupersededError(f"a stream of epoch {session.epoch} took over from {self._live.epoch}"))
        self._live = session
        self.counters.sessions += 1
        return session

    async def _abort(self, context: _Context, error: Exception) -> None:
        await context.abort(_STATUS[type(error)], str(error))


def _reason(end: Exception | None) -> str:
    return "the scheduler left" if end is None else str(end) or type(end).__name__


async def _read_plans(requests: AsyncIterator[pb.ExecuteRequest], session: Session) -> None:
    """Queues plans until the scheduler sends no more. A message that is no plan, or a broken one, ends the session."""
    try:
        async for message in requests:
            if message.WhichOneof("kind") != "plans":
                raise PlanError("kind", message.WhichOneof("kind") or "nothing", "after open there are only plans")
            session.submit(wire.read_plans(message.plans, session.limits))
    except PlanError as error:
        session.end(error)
    except MemoryError as error:
        session.end(error)
    except Exception as error:  # a reader that dies silently would leave the stream hanging
        log.exception("reading plans failed", epoch=session.epoch)
        session.end(StepError(f"reading plans failed: {type(error).__name__}: {error}"))
    else:
        session.submit_end()
