"""What each block of the KV cache is used for."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.core.block_pool import BlockPool
from scheduler.core.scheduler import Scheduler


class BlockState(enum.Enum):
    """Every block is in one of them."""

    FREE = "free"
    CACHED = "cached"
    REFERENCED = "referenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockView:
    """One block.

    references: block tables that name it, and pins. num_tokens: tokens whose KV it holds, counting the plans in flight.
    users: (sequence id, index in its block table), in order of service. tenant, cache_salt: of the sequence that
    computed it, None if it is not indexed.
    """

    block: int
    state: BlockState
    references: int
    num_tokens: int
    users: tuple[tuple[int, int], ...]
    tenant: str | None
    cache_salt: str | None


def block_state(pool: BlockPool, block: int) -> BlockState:
    """The state of a block."""
    if pool.references(block):
        return BlockState.REFERENCED
    return BlockState.CACHED if pool.is_cached(block) else BlockState.FREE


def view_blocks(core: Scheduler, blocks: Iterable[int]) -> list[BlockView]:
    """These blocks, in the given order. Takes time in proportion to all block tables."""
    size, pool, cache = core.config.block_size, core.blocks.pool, core.blocks.prefix_cache
    users: dict[int, list[tuple[int, int]]] = {block: [] for block in blocks}
    num_tokens = dict.fromkeys(users, 0)
    for sequence in core.snapshot().running:
        for index, block in enumerate(sequence.blocks):
            if block in users:
                users[block].append((sequence.sequence_id, index))
                held = min(max(sequence.num_computed_tokens - index * size, 0), size)
                num_tokens[block] = max(num_tokens[block], held)
    views = []
    for block, using in users.items():
        tenant, cache_salt = cache.owner(block) or (None, None)
        views.append(
            BlockView(
                block=block,
                state=block_state(pool, block),
                references=pool.references(block),
                num_tokens=num_tokens[block] if cache_salt is None else size,
                users=tuple(using),
                tenant=tenant,
                cache_salt=cache_salt,
            )
        )
    return views
