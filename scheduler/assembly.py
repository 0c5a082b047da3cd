"""From flags and a worker's capacity to what core and front end are built with, and from their state to figures."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, Self, cast

import structlog

from scheduler import wire
from scheduler.config import ConfigError, SchedulerConfig
from scheduler.core.config import CoreConfig
from scheduler.core.scheduler import Scheduler
from scheduler.engine import Engine, EngineConfig
from scheduler.frontend import stats
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.inspector import InspectedWorker
from scheduler.lane import WorkerLane
from scheduler.metrics.collector import Figures, GroupFigures
from scheduler.metrics.request_metrics import RequestMetrics
from scheduler.recording.errors import RecordingError
from scheduler.recording.recorded_scheduler import RecordedScheduler
from scheduler.recording.writer import RecordingWriter
from scheduler.step_timeout import StepTimeout

# Blocks that admissions leave for the growth of what runs; fewer mean preemptions right after an admission.
_WATERMARK_FRACTION = 0.01

log = structlog.get_logger()


def core_config(config: SchedulerConfig, capacity: wire.WorkerCapacity) -> CoreConfig:
    """Limits of the core for this worker."""
    return CoreConfig(
        num_blocks=capacity.num_blocks,
        num_host_blocks=capacity.num_host_blocks,
        block_size=capacity.block_size,
        bytes_per_block=capacity.bytes_per_block,
        policy=cast(Literal["priority", "fcfs"], config.scheduling_policy),
        preemption_mode=cast(Literal["auto", "recompute", "swap"], config.preemption_mode),
        max_overtakes=config.max_overtakes,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_plans_in_flight=config.max_plans_in_flight,
        enable_prefix_caching=config.enable_prefix_caching,
        max_num_waiting=config.max_num_waiting,
        max_num_waiting_tokens=config.max_num_waiting_tokens,
        watermark=int(capacity.num_blocks * _WATERMARK_FRACTION),
    )


def check_recording(config: SchedulerConfig) -> None:
    """Raises ConfigError if the file to record to is there, or its directory is not: at the start, not when the first
    worker has come."""
    if config.record is None:
        return
    path = Path(config.record)
    if path.exists():
        raise ConfigError(f"--record must name a new file, {path} is there: recordings are not overwritten")
    if not path.parent.is_dir():
        raise ConfigError(f"--record must name a file in a directory that is there, {path.parent} is none")


class CoreFactory:
    """Makes the core of each worker, recorded if --record says so; leaving the block closes the recordings.

    Each core has a recording of its own, which replays by itself: FILE for the first worker that was found, FILE-2 and
    so on for others in the order in which they came.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._num_cores = 0
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()

    def __call__(self, capacity: wire.WorkerCapacity) -> Scheduler:
        """The next core. Raises RecordingError for the first worker's; a worker that comes while requests are served is
        not turned away over its recording."""
        limits = core_config(self._config, capacity)
        self._num_cores += 1
        if self._config.record is None:
            return Scheduler(limits)
        file = Path(self._config.record)
        if self._num_cores > 1:
            file = file.with_name(f"{file.name}-{self._num_cores}")

        def failed(error: OSError) -> None:
            log.error("the recording ends here", file=str(file), why=str(error))

        try:
            writer = RecordingWriter(file, limits, on_failure=failed)
        except RecordingError as error:
            if self._num_cores == 1:
                raise
            log.error("a worker is not recorded", why=str(error))
            return Scheduler(limits)
        self._cleanup.callback(writer.close)
        return RecordedScheduler(limits, writer)


def engine_config(config: SchedulerConfig, max_model_len: int) -> EngineConfig:
    """Limits of the engine."""
    return EngineConfig(
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        worker_grace_s=config.worker_grace,
        step_timeout=StepTimeout(base_s=config.step_timeout, per_token_s=config.step_timeout_per_token),
    )


def model_info(config: SchedulerConfig, capacity: wire.WorkerCapacity, tokenizer: Tokenizer) -> ModelInfo:
    """What requests are validated against. Raises ConfigError if flags, tokenizer and worker do not go together."""
    if config.max_model_len is not None and config.max_model_len > capacity.max_model_len:
        raise ConfigError(
            f"--max-model-len is {config.max_model_len}, must be at most {capacity.max_model_len}, what the worker's "
            "model allows"
        )
    if capacity.tokenizer_digest and tokenizer.digest and capacity.tokenizer_digest != tokenizer.digest:
        raise ConfigError(f"--model {config.model}: the worker has another tokenizer")
    return ModelInfo(
        served_model_name=config.served_model_name or _model_name(config.model),
        architecture=capacity.architecture,
        dtype=capacity.dtype,
        max_model_len=config.max_model_len or capacity.max_model_len,
        logits_width=capacity.logits_width,
        block_size=capacity.block_size,
        tokenizer_digest=capacity.tokenizer_digest,
        weights_digest=capacity.weights_digest,
    )


def _model_name(model: str) -> str:
    """A Hub id as it is; of a path its last part, without `.gguf`."""
    path = Path(model)
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model


def inspected_workers(engine: Engine) -> list[InspectedWorker]:
    """The workers as the inspector sees them, in the order in which they joined."""
    return [
        InspectedWorker(number=lane.number, address=lane.address, core=lane.core, connected=lane.connected)
        for lane in engine.fleet
    ]


def read_stats(engine: Engine) -> stats.Stats:
    """The figures of GetStats as of now."""
    workers = tuple(_worker_stats(lane) for lane in engine.fleet)
    # A worker that is away has no blocks; nor has one that is known by two names any twice, as only one has a session.
    there = [worker for worker in workers if worker.connected]
    return stats.Stats(
        queues=stats.total(stats.QueueStats, [worker.queues for worker in workers]),
        blocks=replace(
            stats.total(stats.BlockStats, [worker.blocks for worker in there]),
            block_size=workers[0].blocks.block_size if workers else 0,
        ),
        host_blocks=stats.total(stats.HostBlockStats, [worker.host_blocks for worker in there]),
        counters=stats.total(stats.CounterStats, [stats.CounterStats(**asdict(one)) for one in engine.fleet.counters]),
        workers=workers,
    )


def _worker_stats(lane: WorkerLane) -> stats.WorkerStats:
    core, pool = lane.core, lane.core.blocks.pool
    return stats.WorkerStats(
        address=lane.address,
        connected=lane.connected,
        epoch=core.epoch,
        restarts=lane.num_restarts,
        hangs=lane.num_hangs,
        leaving=lane.leaving,
        suspects=core.num_suspects,
        queues=stats.QueueStats(running=core.num_running, waiting=core.num_waiting, swapped=core.num_swapped),
        blocks=stats.BlockStats(
            block_size=core.config.block_size,
            total=pool.num_blocks,
            free=pool.num_free,
            cached=pool.num_cached,
            referenced=pool.num_referenced,
        ),
        host_blocks=stats.HostBlockStats(total=core.host.num_blocks, free=core.host.num_free),
    )


def read_figures(engine: Engine, requests: RequestMetrics) -> Figures:
    """The figures of a scrape as of now: a group for each worker."""
    groups = [
        GroupFigures(
            stats=stats.Stats(
                queues=worker.queues,
                blocks=worker.blocks,
                host_blocks=worker.host_blocks,
                counters=stats.CounterStats(**asdict(lane.core.counters)),
                workers=(worker,),
            ),
            waiting_tokens=lane.core.num_waiting_tokens,
            in_flight_tokens=lane.core.num_tokens_in_flight,
        )
        for lane in engine.fleet
        for worker in (_worker_stats(lane),)
    ]
    return Figures(groups=groups, requests=requests)
