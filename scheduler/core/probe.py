"""Looks a prompt up in the prefix cache without touching anything, not even the order of eviction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.live import max_cached_tokens
from scheduler.core.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixProbe:
    """blocks: those that hold the leading tokens, in order. num_cacheable_tokens: what could be cached at best: full
    blocks, and never the last token."""

    blocks: tuple[int, ...]
    num_cached_tokens: int
    num_cacheable_tokens: int


def probe_prefix(core: Scheduler, token_ids: Sequence[int], cache_salt: str) -> PrefixProbe:
    """What a sequence of these tokens would find if it were admitted now. Takes time in proportion to what it finds."""
    size = core.config.block_size
    cacheable = max_cached_tokens(len(token_ids), size) if core.config.enable_prefix_caching else 0
    blocks = tuple(node.block for node in core.blocks.find(token_ids, cache_salt))
    return PrefixProbe(blocks=blocks, num_cached_tokens=len(blocks) * size, num_cacheable_tokens=max(cacheable, 0))
