"""Looks a prompt up in the prefix cache without touching anything, not even the order of eviction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.live import max_cached_tokens
from scheduler.core.prefix_cache import chain_key, root_key, token_bytes
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
    config, cache = core.config, core.blocks.prefix_cache
    size = config.block_size
    cacheable = max_cached_tokens(len(token_ids), size) if config.enable_prefix_caching else 0
    blocks: list[int] = []
    key = root_key(config.model_key, 0, cache_salt)
    for begin in range(0, cacheable, size):
        tokens = token_bytes(list(token_ids[begin : begin + size]))
        key = chain_key(key, tokens)
        block = cache.find(key, tokens)
        if block is None:
            break
        blocks.append(block)
    return PrefixProbe(
        blocks=tuple(blocks), num_cached_tokens=len(blocks) * size, num_cacheable_tokens=max(cacheable, 0)
    )
