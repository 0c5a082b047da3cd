"""Counters of the core. They only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Counters:
    """Whenever no plan is in flight, computed_tokens == kept_tokens + recomputed_tokens + wasted_tokens.

    computed_tokens: token positions planned. kept_tokens: computed for the first time and used. recomputed_tokens:
    computed before, lost to a preemption or a worker's death. wasted_tokens: computed past an end that was not known
    when planned, from KV that is not to be trusted, or in flight when the worker was lost.
    """

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
