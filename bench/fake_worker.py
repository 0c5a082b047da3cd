"""A worker without a model, to measure the scheduler alone: a row's token is the number of the step.

`python -m bench.fake_worker [--steps-per-second N]` prints its port and serves until it is killed. Without a rate it
answers every plan at once; with one it keeps to a schedule (`bench/fanout/pace.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import uvloop

from bench.fanout.pace import Pace
from octavo.worker.v1alpha1 import worker_pb2 as pb
from octavo.worker.v1alpha1 import worker_pb2_grpc
from worker.step import PROTOCOL_VERSION

NUM_BLOCKS, BLOCK_SIZE, LOGITS_WIDTH, MAX_MODEL_LEN = 65536, 16, 32768, 8192


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Keeps no rows. pace: None for as many steps as come."""

    def __init__(self, pace: Pace | None = None, num_blocks: int = NUM_BLOCKS) -> None:
        self._pace = pace
        self._num_blocks = num_blocks

    async def GetCapacity(  # noqa: N802 - the name is the proto's
        self, request: pb.GetCapacityRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetCapacityResponse:
        return pb.GetCapacityResponse(
            protocol_version=PROTOCOL_VERSION,
            world_size=1,
            kv_groups=[pb.KvGroup(num_layers=1, block_size=BLOCK_SIZE, bytes_per_block=1)],
            num_device_blocks=self._num_blocks,
            logits_width=LOGITS_WIDTH,
            max_model_len=MAX_MODEL_LEN,
            architecture="FakeForCausalLM",
            dtype="float32",
            config_digest=b"fake",
        )

    async def Execute(  # noqa: N802 - the name is the proto's
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ExecuteResponse]:
        async for request in request_iterator:
            if request.WhichOneof("kind") == "open":
                yield pb.ExecuteResponse(opened=pb.Opened(group_epoch=request.open.group_epoch))
                continue
            results = [await self._execute(plan) for plan in request.plans.plans]
            yield pb.ExecuteResponse(results=pb.StepResults(results=results))

    async def _execute(self, plan: pb.StepPlan) -> pb.StepResult:
        step, samples = plan.step_id, plan.scheduled.max_samples
        if self._pace is not None:
            wait_s = self._pace.wait_s(step, time.monotonic())
            if wait_s:
                await asyncio.sleep(wait_s)
            self._pace.done(step, time.monotonic())
        return pb.StepResult(step_id=step, num_sampled=samples, tokens=[step % LOGITS_WIDTH] * sum(samples))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-per-second", type=float, default=0)
    parser.add_argument("--num-blocks", type=int, default=NUM_BLOCKS)
    parser.add_argument("--pace-log", type=Path, default=Path(os.devnull))
    arguments = parser.parse_args()
    server = grpc.aio.server()
    with arguments.pace_log.open("w") as log:
        pace = Pace(arguments.steps_per_second, log) if arguments.steps_per_second else None
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(FakeWorker(pace, arguments.num_blocks), server)
        print(server.add_insecure_port("127.0.0.1:0"), flush=True)
        await server.start()
        await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
