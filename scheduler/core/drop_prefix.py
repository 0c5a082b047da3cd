"""Drops cached prefixes on request: by salt, by tenant, or all of them.

Only unreferenced blocks go, so nothing that runs or is planned is touched. What is dropped can no longer be found, and
its blocks are free. A chain may lose its middle; what comes after is found again once the middle is computed anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.block_manager import BlockManager


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSelection:
    """Which prefixes. cache_salt: under which they are found. tenant: whose sequence computed them. None: any."""

    cache_salt: str | None = None
    tenant: str | None = None


def drop_prefix(blocks: BlockManager, selection: PrefixSelection) -> tuple[int, int]:
    """Returns how many blocks were dropped, and how many stay because they are in use."""
    cache, pool = blocks.prefix_cache, blocks.pool
    dropped = kept = 0
    for block in cache.indexed_blocks():
        owner = cache.owner(block)
        assert owner is not None, "it is indexed"
        tenant, cache_salt = owner
        if selection.cache_salt not in (None, cache_salt) or selection.tenant not in (None, tenant):
            continue
        if pool.is_cached(block):
            cache.drop((block,))
            pool.uncache(block)
            dropped += 1
        else:
            kept += 1
    return dropped, kept
