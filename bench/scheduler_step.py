"""What a step costs the scheduler: the core alone, and the whole engine against a worker without a model.

`python -m bench.scheduler_step` prints one line of JSON per number of running sequences: microseconds of CPU per
steady decode step, median over windows for the core, total CPU over steps for the engine process.
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
from scheduler.core.result import StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.engine import Engine, EngineConfig
from scheduler.messages import Add, StepUpdate
from scheduler.worker_client import WorkerClient

RUNNING = (16, 64, 256)
_PROMPT, _STEPS, _WARM_UP, _WINDOW = 100, 600, 100, 50


def _config(running: int, num_blocks: int) -> CoreConfig:
    return CoreConfig(num_blocks=num_blocks, max_num_seqs=running, max_num_batched_tokens=max(2048, running))


def _specs(running: int) -> list[SequenceSpec]:
    return [
        SequenceSpec(
            sequence_id=number, prompt=tuple((number * 131 + i) % 32768 for i in range(_PROMPT)), max_tokens=_STEPS
        )
        for number in range(running)
    ]


def core_us(running: int) -> float:
    """Median over windows of the time of `schedule` plus `update`, two plans in flight."""
    core = Scheduler(_config(running, running * 64))
    for spec in _specs(running):
        core.add(spec)
    in_flight: list[StepPlan] = []
    windows: list[float] = []
    spent_ns = steps = 0
    while True:
        begin = time.perf_counter_ns()
        plan = core.schedule()
        spent_ns += time.perf_counter_ns() - begin
        if isinstance(plan, StepPlan):
            in_flight.append(plan)
            continue
        if not in_flight:
            break
        oldest = in_flight.pop(0)
        tokens = tuple(place % 32768 for place in range(sum(oldest.max_samples)))
        result = StepResult(epoch=0, step_id=oldest.step_id, num_sampled=oldest.max_samples, tokens=tokens)
        begin = time.perf_counter_ns()
        core.update(result)
        spent_ns += time.perf_counter_ns() - begin
        steps += 1
        if steps % _WINDOW == 0:
            if steps > _WARM_UP:
                windows.append(spent_ns / _WINDOW / 1e3)
            spent_ns = 0
    return statistics.median(windows)


async def engine_us(running: int, address: str) -> float:
    """CPU time of this process per step: core, wire, gRPC and event loop; delivery to clients excluded."""
    worker = WorkerClient(address)
    capacity = await worker.capacity(10)
    config = EngineConfig(
        core=_config(running, fake_worker.NUM_BLOCKS), max_model_len=fake_worker.MAX_MODEL_LEN, worker_grace_s=5
    )
    engine = Engine(config, worker, capacity, on_session=lambda connected: None)
    ended, warm, done = 0, asyncio.Event(), asyncio.Event()

    def deliver(update: StepUpdate) -> None:
        nonlocal ended
        ended += len(update.ends)
        if engine.core.counters.steps >= _WARM_UP:
            warm.set()
        if ended == running:
            done.set()

    task = asyncio.create_task(engine.run(deliver))
    for spec in _specs(running):
        engine.send(Add(spec=spec))
    await warm.wait()
    begin_steps, begin = engine.core.counters.steps, time.process_time_ns()
    await done.wait()
    spent_us = (time.process_time_ns() - begin) / 1e3
    steps = engine.core.counters.steps - begin_steps
    task.cancel()
    await asyncio.wait([task])
    await worker.close()
    return spent_us / steps


def wire_us(running: int) -> float:
    """Encoding a steady decode plan, median."""
    plan = StepPlan(step_id=1, rows=tuple(range(running)), num_tokens=(1,) * running, max_samples=(1,) * running)
    times = []
    for _ in range(200):
        begin = time.perf_counter_ns()
        wire.plan_message(plan).SerializeToString()
        times.append((time.perf_counter_ns() - begin) / 1e3)
    return statistics.median(times)


def main() -> None:
    process = subprocess.Popen([sys.executable, "-m", "bench.fake_worker"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = f"127.0.0.1:{int(process.stdout.readline())}"
        for running in RUNNING:
            figures = {
                "running": running,
                "core_us_per_step": round(core_us(running), 1),
                "encode_plan_us": round(wire_us(running), 1),
                "engine_cpu_us_per_step": round(asyncio.run(engine_us(running, address)), 1),
            }
            print(json.dumps(figures), flush=True)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
