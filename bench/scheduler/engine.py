"""What a step costs the whole engine, against a worker without a model.

`python -m bench.scheduler.engine` prints one line of JSON per number of running sequences, in microseconds of CPU per
steady decode step: core, wire, gRPC and event loop of the engine's process together, and encoding the plan alone.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time

from bench import fake_worker
from scheduler import wire
from scheduler.core.config import CoreConfig
from scheduler.core.plan import StepPlan
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.engine import Engine, EngineConfig
from scheduler.messages import Add, StepUpdate
from scheduler.step_timeout import StepTimeout
from scheduler.worker_client import WorkerClient

_RUNNING = (16, 64, 256)
_PROMPT, _STEPS, _WARM_UP = 100, 600, 100


async def engine_us(running: int, address: str) -> float:
    """CPU time of this process per step: core, wire, gRPC and event loop; delivery to clients excluded."""
    worker = WorkerClient(address)
    capacity = await worker.capacity(10)
    await worker.close()
    core = CoreConfig(
        num_blocks=fake_worker.NUM_BLOCKS, max_num_seqs=running, max_num_batched_tokens=max(2048, running)
    )
    config = EngineConfig(
        max_model_len=fake_worker.MAX_MODEL_LEN,
        max_num_seqs=core.max_num_seqs,
        max_num_batched_tokens=core.max_num_batched_tokens,
        worker_grace_s=5,
        step_timeout=StepTimeout(base_s=60, per_token_s=0),
    )
    scheduler = Scheduler(core)
    engine = Engine(config, capacity.config_digest, lambda _: scheduler, on_health=lambda worker, healthy: None)
    engine.join(address, capacity)
    ended, warm, done = 0, asyncio.Event(), asyncio.Event()

    def deliver(update: StepUpdate) -> None:
        nonlocal ended
        ended += len(update.ends)
        if scheduler.counters.steps >= _WARM_UP:
            warm.set()
        if ended == running:
            done.set()

    task = asyncio.create_task(engine.run(deliver))
    for number in range(running):
        prompt = tuple((number * 131 + place) % 32768 for place in range(_PROMPT))
        engine.send(Add(specs=(SequenceSpec(sequence_id=number, prompt=prompt, max_tokens=_STEPS),)))
    await warm.wait()
    begin_steps, begin = scheduler.counters.steps, time.process_time_ns()
    await done.wait()
    spent_us = (time.process_time_ns() - begin) / 1e3
    steps = scheduler.counters.steps - begin_steps
    task.cancel()
    await asyncio.wait([task])
    return spent_us / steps


def wire_us(running: int) -> float:
    """Encoding a steady decode plan, median."""
    plan = StepPlan(step_id=1, rows=tuple(range(running)), num_tokens=(1,) * running, max_samples=(1,) * running)
    times = []
    for _ in range(200):
        begin = time.perf_counter_ns()
        wire.plans_message([plan]).SerializeToString()
        times.append((time.perf_counter_ns() - begin) / 1e3)
    return statistics.median(times)


def main() -> None:
    process = subprocess.Popen([sys.executable, "-m", "bench.fake_worker"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = f"127.0.0.1:{int(process.stdout.readline())}"
        for running in _RUNNING:
            figures = {
                "running": running,
                "encode_plan_us": round(wire_us(running), 1),
                "engine_cpu_us_per_step": round(asyncio.run(engine_us(running, address)), 1),
            }
            print(json.dumps(figures), flush=True)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
