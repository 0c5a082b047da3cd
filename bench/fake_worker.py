"""A worker without a model: answers every plan at once with arbitrary tokens, to measure the scheduler alone.

`python -m bench.fake_worker` prints its port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from octavo.worker.v1alpha1 import worker_pb2 as pb
from octavo.worker.v1alpha1 import worker_pb2_grpc

NUM_BLOCKS, BLOCK_SIZE, LOGITS_WIDTH, MAX_MODEL_LEN = 65536, 16, 32768, 8192


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Keeps no rows: a row's token is a function of the step and its place in the plan."""

    async def GetCapacity(  # noqa: N802 - the name is the proto's
        self, request: pb.GetCapacityRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetCapacityResponse:
        return pb.GetCapacityResponse(
            protocol_version=1,
            world_size=1,
            kv_groups=[pb.KvGroup(num_layers=1, block_size=BLOCK_SIZE, bytes_per_block=1)],
            num_device_blocks=NUM_BLOCKS,
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
            first = request.plan.step_id * 7919
            tokens = [(first + place) % LOGITS_WIDTH for place in range(sum(samples))]
            result = pb.StepResult(step_id=request.plan.step_id, num_sampled=samples, tokens=tokens)
            yield pb.ExecuteResponse(result=result)


async def main() -> None:
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(FakeWorker(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
