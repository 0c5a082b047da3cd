"""From flags and a worker's capacity to what core and front end are built with, and from their state to figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Literal, cast

import structlog

from scheduler import wire
from scheduler.config import ConfigError, SchedulerConfig
from scheduler.core.config import CoreConfig
from scheduler.core.scheduler import Scheduler
from scheduler.engine import Engine
from scheduler.frontend import stats
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.metrics.collector import Figures, GroupFigures
from scheduler.metrics.request_metrics import RequestMetrics
from scheduler.recording.recorded_scheduler import RecordedScheduler
from scheduler.recording.writer import RecordingWriter

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


@contextlib.contextmanager
def open_core(config: SchedulerConfig, capacity: wire.WorkerCapacity) -> Iterator[Scheduler]:
    """The core, recorded if --record says so; the recording is closed at the end. Raises RecordingError."""
    limits = core_config(config, capacity)
    if config.record is None:
        yield Scheduler(limits)
        return

    def failed(error: OSError) -> None:
        log.error("the recording ends here", file=config.record, why=str(error))

    writer = RecordingWriter(Path(config.record), limits, on_failure=failed)
    try:
        yield RecordedScheduler(limits, writer)
    finally:
        writer.close()


def model_info(config: SchedulerConfig, capacity: wire.WorkerCapacity, tokenizer: Tokenizer) -> ModelInfo:
    """What requests are validated against. Raises ConfigError if flags, tokenizer and worker do not go together."""
    if config.max_model_len is not None and config.max_model_len > capacity.max_model_len:
        raise ConfigError(
            f"--max-model-len is {config.max_model_len}, must be at most {capacity.max_model_len}, what the worker's "
            "model allows"
        )
    if capacity.tokenizer_digest and tokenizer.digest and capacity.tokenizer_digest != tokenizer.digest:
        raise ConfigError(f"--model {config.model}: the worker at {config.worker} has another tokenizer")
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


def read_stats(engine: Engine) -> stats.Stats:
    """The figures of GetStats as of now."""
    core, pool = engine.core, engine.core.blocks.pool
    return stats.Stats(
        queues=stats.QueueStats(running=core.num_running, waiting=core.num_waiting, swapped=core.num_swapped),
        blocks=stats.BlockStats(
            block_size=core.config.block_size,
            total=pool.num_blocks,
            free=pool.num_free,
            cached=pool.num_cached,
            referenced=pool.num_referenced,
        ),
        host_blocks=stats.HostBlockStats(total=core.host.num_blocks, free=core.host.num_free),
        counters=stats.CounterStats(**asdict(core.counters)),
        worker=stats.WorkerStats(
            address=engine.worker_address,
            connected=engine.connected,
            epoch=core.epoch,
            restarts=max(engine.num_sessions - 1, 0),
        ),
    )


def read_figures(engine: Engine, requests: RequestMetrics) -> Figures:
    """The figures of a scrape as of now."""
    group = GroupFigures(
        stats=read_stats(engine),
        waiting_tokens=engine.core.num_waiting_tokens,
        in_flight_tokens=engine.core.num_tokens_in_flight,
    )
    return Figures(groups=(group,), requests=requests)
