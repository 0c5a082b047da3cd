"""A worker without a model, to measure the scheduler alone: a row's token is the number of the step.

`python -m bench.fake_worker [--steps-per-second N]` prints its port and serves until it is killed. Without a rate it
answers every plan at once.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from octavo.worker.v1alpha1 import worker_pb2 as pb
from octavo.worker.v1alpha1 import worker_pb2_grpc
from worker.step import PROTOCOL_VERSION

NUM_BLOCKS, BLOCK_SIZE, LOGITS_WIDTH, MAX_MODEL_LEN = 65536, 16, 32768, 8192


_MOST_LATE_S = 1.0


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Keeps no rows. steps_per_second: 0 for as many as come."""

    def __init__(self, steps_per_second: float = 0, num_blocks: int = NUM_BLOCKS) -> None:
        self._period_s = 1 / steps_per_second if steps_per_second else 0.0
        self._num_blocks = num_blocks
        self._next_s = 0.0

    async def _pace(self) -> None:
        """Waits for the next tick. Steps that came late are made up for, those of the last second at most, so that a
        scheduler that keeps up on average gets the whole rate on a machine that others use, too."""
        now = time.monotonic()
        self._next_s = max(self._next_s + self._period_s, now - _MOST_LATE_S)
        if self._next_s > now:
            await asyncio.sleep(self._next_s - now)

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
            samples = request.plan.scheduled.max_samples
            tokens = [request.plan.step_id % LOGITS_WIDTH] * sum(samples)
            if self._period_s:
                await self._pace()
            result = pb.StepResult(step_id=request.plan.step_id, num_sampled=samples, tokens=tokens)
            yield pb.ExecuteResponse(result=result)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-per-second", type=float, default=0)
    parser.add_argument("--num-blocks", type=int, default=NUM_BLOCKS)
    arguments = parser.parse_args()
    server = grpc.aio.server()
    worker = FakeWorker(arguments.steps_per_second, arguments.num_blocks)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
