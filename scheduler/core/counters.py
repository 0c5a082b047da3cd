"""Counters of the core. They only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Counters:
    """preemptions: sequences that lost their row for want of blocks, or to one that goes first. preemptions_swap: those
    of them whose KV went to the host pool. forks: sequences that got their prompt's KV from another of their request.

    Whenever no plan is in flight, computed_tokens == kept_tokens + recomputed_tokens + wasted_tokens.

    computed_tokens: token positions planned. kept_tokens: computed for the first time and used. recomputed_tokens:
    computed before, lost to a preemption or a worker's death. wasted_tokens: computed past an end that was not known
    when planned, from KV that is not to be trusted, or in flight when the worker was lost.
    """

    steps: int = 0
    preemptions: int = 0
    preemptions_swap: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    forks: int = 0
    finished: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    kept_tokens: int = 0
    recomputed_tokens: int = 0
    wasted_tokens: int = 0
