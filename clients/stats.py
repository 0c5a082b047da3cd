"""What the scheduler says about itself. Field by field the meaning is that of protos/octavo/serving/v1/admin.proto."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Sequences by queue."""

    running: int
    waiting: int
    swapped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """KV cache blocks; free + cached + referenced == total."""

    block_size: int
    total: int
    free: int
    cached: int
    referenced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBlockStats:
    """Blocks in the worker's host memory, where swapped sequences lie."""

    total: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterStats:
    """Counters since the scheduler's start."""

    steps: int
    preemptions: int
    finished: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    generated_tokens: int
    computed_tokens: int
    kept_tokens: int
    recomputed_tokens: int
    wasted_tokens: int
    preemptions_swap: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    forks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """A worker's session and what it holds."""

    address: str
    connected: bool
    epoch: int
    restarts: int
    hangs: int
    leaving: bool
    suspects: int
    queues: QueueStats
    blocks: BlockStats
    host_blocks: HostBlockStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Gauges as of now and counters since the start, summed over all workers. worker: the first of `workers`."""

    queues: QueueStats
    blocks: BlockStats
    counters: CounterStats
    worker: WorkerStats
    host_blocks: HostBlockStats
    workers: tuple[WorkerStats, ...] = ()
