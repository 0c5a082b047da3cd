"""An engine over real gRPC with workers that answer as a test tells them to, and what a front end would see of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from scheduler.core.config import CoreConfig
from scheduler.core.result import End
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.engine import Engine, EngineConfig
from scheduler.messages import Add, Rejected, StepUpdate
from scheduler.step_timeout import StepTimeout
from scheduler.wire import WorkerCapacity
from scheduler.worker_client import WorkerClient
from tests.scheduler.scripted_worker import ScriptedWorker

_CAP_S = 20.0


class Listener:
    """What a front end would see."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, End] = {}
        self.rejected: dict[int, Rejected] = {}
        self.health: list[bool] = []
        self.workers: list[tuple[str, bool | None]] = []
        self._changed = asyncio.Event()

    def deliver(self, update: StepUpdate) -> None:
        for sequence_id, token in zip(update.sequence_ids, update.token_ids, strict=True):
            self.tokens.setdefault(sequence_id, []).append(token)
        self.ends.update({end.sequence_id: end for end in update.ends})
        self.rejected.update({rejected.sequence_id: rejected for rejected in update.rejected})
        self._changed.set()

    def on_health(self, worker: str, healthy: bool | None) -> None:
        if worker:
            self.workers.append((worker, healthy))
        else:
            self.health.append(bool(healthy))
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition, also one that no news announces."""
        async with asyncio.timeout(_CAP_S):
            while not condition():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.02)


PATIENT = StepTimeout(base_s=60, per_token_s=0)


@asynccontextmanager
async def running_engine(
    *workers: ScriptedWorker, plans: int = 2, grace_s: float = 30.0, step_timeout: StepTimeout = PATIENT
) -> AsyncIterator[tuple[Engine, Listener, int]]:
    """An engine with these workers, whose lanes are numbered in this order, and the port of the first."""
    ports = [await worker.start() for worker in workers]
    clients = [WorkerClient(f"127.0.0.1:{port}") for port in ports]
    capacities = [await client.capacity(10) for client in clients]

    def open_core(capacity: WorkerCapacity) -> Scheduler:
        return Scheduler(
            CoreConfig(
                num_blocks=capacity.num_blocks,
                block_size=capacity.block_size,
                max_num_seqs=8,
                max_num_batched_tokens=32,
                max_plans_in_flight=plans,
            )
        )

    config = EngineConfig(
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        worker_grace_s=grace_s,
        step_timeout=step_timeout,
    )
    listener = Listener()
    engine = Engine(config, capacities[0].config_digest, open_core, on_health=listener.on_health)
    for client, capacity in zip(clients, capacities, strict=True):
        await client.close()
        engine.join(client.address, capacity)
    task = asyncio.create_task(engine.run(listener.deliver))
    try:
        if len(workers) > 1:  # else the first that is there takes it all
            await listener.until(lambda: all(lane.connected for lane in engine.fleet))
        yield engine, listener, ports[0]
    finally:
        task.cancel()
        await asyncio.wait([task])
        for worker in workers:
            await worker.die()


def core_of(engine: Engine, number: int = 0) -> Scheduler:
    """The core of a worker, in the order in which they joined."""
    return list(engine.fleet)[number].core


def spec(sequence_id: int = 1, *, prompt: int | Sequence[int] = 6, max_tokens: int = 5) -> Add:
    """A request of one sequence; prompt: its tokens, or how many, which are the same for all."""
    token_ids = tuple(range(prompt) if isinstance(prompt, int) else prompt)
    return Add(specs=(SequenceSpec(sequence_id=sequence_id, prompt=token_ids, max_tokens=max_tokens),))
