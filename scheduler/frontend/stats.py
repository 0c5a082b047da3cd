"""The figures of GetStats, as plain values; the fields are those of the messages in admin.proto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Sequences by queue."""

    running: int
    waiting: int
    swapped: int = 0


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
    """Blocks in the worker's host memory."""

    total: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterStats:
    """Counters since the scheduler's start."""

    steps: int = 0
    preemptions: int = 0
    finished: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    kept_tokens: int = 0
    recomputed_tokens: int = 0
    wasted_tokens: int = 0
    preemptions_swap: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    forks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """One worker: its session, and what its core holds."""

    address: str
    connected: bool
    epoch: int
    restarts: int
    hangs: int = 0
    leaving: bool = False
    suspects: int = 0
    queues: QueueStats
    blocks: BlockStats
    host_blocks: HostBlockStats = HostBlockStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """All of them, as of the last step; sums over all workers but for `workers`."""

    queues: QueueStats
    blocks: BlockStats
    counters: CounterStats
    workers: tuple[WorkerStats, ...]
    host_blocks: HostBlockStats = HostBlockStats()

    @property
    def worker(self) -> WorkerStats:
        """The first, or only, one."""
        return self.workers[0]


_Figures = TypeVar("_Figures", QueueStats, BlockStats, HostBlockStats, CounterStats)


def total(kind: type[_Figures], parts: Sequence[_Figures]) -> _Figures:
    """The sum of each field."""
    return kind(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(kind)})
