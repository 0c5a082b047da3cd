"""A server of the public services on loopback, with an engine that is driven by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from octavo.serving.v1 import admin_pb2_grpc, generation_pb2, generation_pb2_grpc, sampling_pb2
from scheduler.core.config import CoreConfig
from scheduler.core.scheduler import Scheduler
from scheduler.frontend.admin.service import AdminServicer
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.malformed import MalformedRequestInterceptor
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.service import GenerationServicer
from scheduler.frontend.stats import BlockStats, CounterStats, QueueStats, Stats, WorkerStats
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.inspector import InspectedWorker, Inspector
from scheduler.step_feed import StepFeed
from tests.scheduler.frontend.calls import Failure, failure, until
from tests.scheduler.frontend.engine_script import EngineScript

STATS = Stats(
    queues=QueueStats(running=1, waiting=2),
    blocks=BlockStats(block_size=16, total=8, free=5, cached=2, referenced=1),
    counters=CounterStats(steps=3, computed_tokens=10, kept_tokens=9, wasted_tokens=1),
    workers=(
        WorkerStats(
            address="127.0.0.1:1",
            connected=True,
            epoch=4,
            restarts=2,
            queues=QueueStats(running=1, waiting=2),
            blocks=BlockStats(block_size=16, total=8, free=5, cached=2, referenced=1),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server on loopback and its stubs."""

    engine: EngineScript
    frontend: Frontend
    generation: Any
    admin: Any
    channel: Any

    async def added(self, count: int) -> int:
        """Waits for the engine to get its count-th sequence, and gives its id."""
        await until(lambda: len(self.engine.added) >= count)
        return self.engine.added[count - 1].sequence_id


@asynccontextmanager
async def serve(tokenizer: Tokenizer, model: ModelInfo) -> AsyncIterator[Service]:
    engine = EngineScript()
    frontend = Frontend(tokenizer=tokenizer, model=model, send=engine.send)
    engine.deliver = frontend.deliver
    server = grpc.aio.server(interceptors=(MalformedRequestInterceptor(),))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(GenerationServicer(frontend), server)
    core = Scheduler(CoreConfig(num_blocks=8))
    worker = InspectedWorker(number=1, address="127.0.0.1:1", core=core, connected=True)
    inspector = Inspector(lambda: [worker], frontend.requests)
    admin = AdminServicer(lambda: STATS, inspector, frontend, StepFeed())
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Service(
                engine=engine,
                frontend=frontend,
                generation=generation_pb2_grpc.GenerationServiceStub(channel),
                admin=admin_pb2_grpc.AdminServiceStub(channel),
                channel=channel,
            )
    finally:
        await server.stop(None)


Run = Callable[[Callable[[Service], Awaitable[None]]], None]


def runner(tokenizer: Tokenizer, model: ModelInfo) -> Run:
    """Runs a test against a server of its own."""

    def run(test: Callable[[Service], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with serve(tokenizer, model) as service:
                await asyncio.wait_for(test(service), 60)

        asyncio.run(whole())

    return run


def ids(*token_ids: int, **sampling: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=token_ids), sampling_params=sampling_pb2.SamplingParams(**sampling)
    )


async def stream_failure(call: Any, texts: list[str] | None = None) -> Failure:
    """As `failure`, of a stream; texts gets those of the deltas before it."""

    async def read() -> None:
        async for response in call:
            if texts is not None:
                texts.append(response.deltas[0].text)

    return await failure(read())
