"""A worker in this process behind a real server on a loopback port, and streams to it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from octavo.worker.v1alpha1 import worker_pb2 as pb
from octavo.worker.v1alpha1 import worker_pb2_grpc as pb_grpc
from worker.assembly import load_worker
from worker.config import WorkerConfig
from worker.server import WorkerServer
from worker.step import PROTOCOL_VERSION

CAP_S = 60.0
"""No wait of a test is longer; all of them end in milliseconds unless something hangs."""


class Stream:
    """An Execute stream, driven message by message."""

    def __init__(self, stub: pb_grpc.WorkerServiceStub) -> None:
        self._call = stub.Execute()

    async def send(self, *messages: pb.Open | pb.StepPlan) -> None:
        """Opens the stream, or sends plans together."""
        if isinstance(messages[0], pb.Open):
            await self._call.write(pb.ExecuteRequest(open=messages[0]))
        else:
            await self._call.write(pb.ExecuteRequest(plans=pb.StepPlans(plans=messages)))

    async def send_raw(self, message: pb.ExecuteRequest) -> None:
        """Sends any message."""
        await self._call.write(message)

    async def receive(self) -> pb.ExecuteResponse:
        """The next message; an ended stream is an AssertionError that says how it ended."""
        async with asyncio.timeout(CAP_S):
            response = await self._call.read()
            if response is grpc.aio.EOF:
                raise AssertionError(f"the stream ended: {await self._call.code()} {await self._call.details()}")
            return response

    async def result(self, plan: pb.StepPlan) -> pb.StepResult:
        """Sends a plan and waits for its result."""
        await self.send(plan)
        return await self.next_result()

    async def next_result(self) -> pb.StepResult:
        """The next message, the result of a plan that was sent alone."""
        (result,) = (await self.receive()).results.results
        return result

    async def half_close(self) -> None:
        """No more plans."""
        await self._call.done_writing()

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """Waits for the end, dropping results that are still on their way; code and details."""
        async with asyncio.timeout(CAP_S):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await self._call.read() is not grpc.aio.EOF:
                    pass
            return await self._call.code(), await self._call.details()

    def cancel(self) -> None:
        self._call.cancel()


async def opening(stub: pb_grpc.WorkerServiceStub, **changes: object) -> pb.Open:
    """An Open that the worker accepts, with fields replaced."""
    capacity = await stub.GetCapacity(pb.GetCapacityRequest())
    fields = {
        "protocol_version": PROTOCOL_VERSION,
        "config_digest": capacity.config_digest,
        "num_device_blocks": capacity.num_device_blocks,
        "num_host_blocks": capacity.num_host_blocks,
        "group_epoch": 1,
        "num_rows": 8,
        "max_num_batched_tokens": 256,
        "max_model_len": capacity.max_model_len,
    }
    return pb.Open(**{**fields, **changes})


class InProcessWorker:
    """A serving worker and a channel to it."""

    def __init__(self, server: WorkerServer, channel: grpc.aio.Channel, port: int) -> None:
        self.server = server
        self.channel = channel
        self.address = f"127.0.0.1:{port}"
        self.stub = pb_grpc.WorkerServiceStub(channel)

    async def capacity(self) -> pb.GetCapacityResponse:
        return await self.stub.GetCapacity(pb.GetCapacityRequest())

    async def opening(self, **changes: object) -> pb.Open:
        """An Open that the worker accepts, with fields replaced."""
        return await opening(self.stub, **changes)

    async def open(self, **changes: object) -> Stream:
        """A stream that the worker has confirmed."""
        stream, opening = Stream(self.stub), await self.opening(**changes)
        await stream.send(opening)
        assert (await stream.receive()).opened.group_epoch == opening.group_epoch
        return stream


@contextlib.asynccontextmanager
async def serving(
    model: Path, logits_width: int | None = None, on_out_of_memory: Callable[[], None] | None = None
) -> AsyncIterator[InProcessWorker]:
    """A worker of 64 device blocks of 4 tokens, and the 16 host blocks that are the default beside them.

    logits_width: what it claims in place of the truth. on_out_of_memory: as in `WorkerService`, by default a failure.
    """
    server = WorkerServer(on_out_of_memory or (lambda: pytest.fail("memory ran out")))
    try:
        port = await server.listen("127.0.0.1", 0)
        config = WorkerConfig(
            model=str(model),
            dtype="float32",
            backend="torch",
            num_gpu_blocks_override=64,
            block_size=4,
            max_num_batched_tokens=256,
            max_num_seqs=100,
            threads=1,
        )
        loaded = await server.executor.call(lambda: load_worker(config))
        if logits_width is not None:
            loaded = dataclasses.replace(
                loaded, capacity=dataclasses.replace(loaded.capacity, logits_width=logits_width)
            )
        await server.serve(loaded)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield InProcessWorker(server, channel, port)
    finally:
        assert await server.stop()
