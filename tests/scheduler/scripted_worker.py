"""A hand-written peer on the other end of the step plane: a real gRPC server that answers as a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from octavo.worker.v1alpha1 import worker_pb2 as pb
from octavo.worker.v1alpha1 import worker_pb2_grpc
from scheduler.wire import PROTOCOL_VERSION

Answer = Callable[[pb.StepPlan], pb.StepResult | None]


def counting(plan: pb.StepPlan) -> pb.StepResult:
    """Samples 100 + step id for every row that may sample."""
    samples = list(plan.scheduled.max_samples)
    return pb.StepResult(step_id=plan.step_id, num_sampled=samples, tokens=[100 + plan.step_id] * sum(samples))


class ScriptedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """answer: the result of a plan, or None to break the stream with INTERNAL instead."""

    def __init__(self, answer: Answer = counting, *, num_blocks: int = 64, config_digest: bytes = b"one") -> None:
        self.answer = answer
        self.num_blocks = num_blocks
        self.config_digest = config_digest
        self.opens: list[pb.Open] = []
        self.plans: list[pb.StepPlan] = []
        self.num_plans: list[int] = []  # of each message
        self.gate = asyncio.Event()
        self.gate.set()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> int:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return bound

    async def die(self) -> None:
        """Cuts every stream at once, as a killed process does."""
        assert self._server is not None
        await self._server.stop(None)

    async def GetCapacity(  # noqa: N802 - the name is the proto's
        self, request: pb.GetCapacityRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetCapacityResponse:
        return pb.GetCapacityResponse(
            protocol_version=PROTOCOL_VERSION,
            world_size=1,
            kv_groups=[pb.KvGroup(num_layers=1, block_size=4, bytes_per_block=64)],
            num_device_blocks=self.num_blocks,
            logits_width=1000,
            max_model_len=256,
            architecture="ScriptedForCausalLM",
            dtype="float32",
            config_digest=self.config_digest,
        )

    async def Execute(  # noqa: N802 - the name is the proto's
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ExecuteResponse]:
        async for request in request_iterator:
            if request.WhichOneof("kind") == "open":
                self.opens.append(request.open)
                yield pb.ExecuteResponse(opened=pb.Opened(group_epoch=request.open.group_epoch))
                continue
            self.num_plans.append(len(request.plans.plans))
            results = []
            for plan in request.plans.plans:
                self.plans.append(plan)
                await self.gate.wait()
                result = self.answer(plan)
                if result is None:
                    await context.abort(grpc.StatusCode.INTERNAL, "the step failed")
                results.append(result)
            yield pb.ExecuteResponse(results=pb.StepResults(results=results))
