"""Block tables: gives sequences their blocks, finds and shares cached prefixes, takes blocks back.

The reference count of a block is the number of block tables that name it. Whatever allocates does so all or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.block_pool import BlockPool
from scheduler.core.config import CoreConfig
from scheduler.core.live import LiveSequence, blocks_for, max_cached_tokens
from scheduler.core.prefix_cache import PrefixCache, chain_key, root_key, token_bytes


@dataclass(frozen=True, slots=True)
class Allocation:
    """What an allocation gave: the new blocks, and how many tokens were found in the prefix cache before them."""

    blocks: tuple[int, ...]
    num_cached_tokens: int


class BlockManager:
    """Owns the pool, the prefix cache and the `blocks`, `block_keys` and `num_indexed` of every live sequence."""

    def __init__(self, config: CoreConfig) -> None:
        self._block_size = config.block_size
        self._caching = config.enable_prefix_caching
        self._model_key = config.model_key
        self.reset(config.num_blocks)

    def reset(self, num_blocks: int) -> None:
        """Forgets all contents: the worker that held them is gone. Sequences must have been `forget`-ed."""
        self.prefix_cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self.prefix_cache.drop)

    def admit(self, sequence: LiveSequence, watermark: int) -> Allocation | None:
        """Gives a sequence without blocks all that its known tokens need, cached prefix blocks first.

        None if fewer than `watermark` blocks would stay available.
        """
        hits = self._match(sequence)
        need = blocks_for(len(sequence.token_ids), self._block_size) - len(hits)
        taken_from_cached = sum(self.pool.is_cached(block) for block in hits)
        if self.pool.num_available - taken_from_cached - need < watermark:
            return None
        for block in hits:
            self.pool.share(block)
        fresh = self.pool.take(need)
        assert fresh is not None, "availability was checked"
        sequence.blocks = hits + fresh
        sequence.num_indexed = len(hits)
        return Allocation(tuple(fresh), len(hits) * self._block_size)

    def append(self, sequence: LiveSequence, num_tokens: int) -> Allocation | None:
        """Lets the table grow to hold `num_tokens` tokens."""
        need = blocks_for(num_tokens, self._block_size) - len(sequence.blocks)
        if need <= 0:
            return Allocation((), 0)
        fresh = self.pool.take(need)
        if fresh is None:
            return None
        sequence.blocks += fresh
        return Allocation(tuple(fresh), 0)

    def index(self, sequence: LiveSequence) -> None:
        """Makes blocks findable whose tokens are all known and whose KV is planned.

        A plan sent later reads them after they were written, because a worker executes plans in order; a row of the
        same plan may too, because each layer writes all its KV before it attends.
        """
        if not self._caching:
            return
        size = self._block_size
        full = min(sequence.num_computed, len(sequence.token_ids)) // size
        while sequence.num_indexed < full:
            index = sequence.num_indexed
            tokens = token_bytes(sequence.token_ids[index * size : (index + 1) * size])
            key = self._key(sequence, index, tokens)
            self.prefix_cache.insert(key, tokens, sequence.blocks[index], sequence.block_keys[0])
            sequence.num_indexed += 1

    def release(self, sequence: LiveSequence) -> None:
        """Takes a sequence's blocks back; those with a known prefix stay cached, its tail evicted before its head."""
        self.pool.release(reversed(sequence.blocks), self.prefix_cache.__contains__)
        self.forget(sequence)

    def forget(self, sequence: LiveSequence) -> None:
        """Empties a sequence's table without touching the pool."""
        sequence.blocks = []
        sequence.num_indexed = 0

    def distrust(self, sequence: LiveSequence) -> None:
        """Takes every block that may hold KV derived from this sequence's out of the prefix cache.

        KV depends on all tokens before it, and blocks change hands, so that is every block whose chain begins as this
        sequence does: branches that sharers added, and what sequences that ended left behind, too.
        """
        if sequence.block_keys:
            for block in self.prefix_cache.beginning_with(sequence.block_keys[0]):
                self.prefix_cache.drop(block)
                self.pool.uncache(block)

    def _match(self, sequence: LiveSequence) -> list[int]:
        """The longest run of cached blocks that begins this sequence, within `max_cached_tokens`."""
        if not self._caching:
            return []
        size = self._block_size
        hits: list[int] = []
        for index in range(max_cached_tokens(len(sequence.token_ids), size) // size):
            tokens = token_bytes(sequence.token_ids[index * size : (index + 1) * size])
            block = self.prefix_cache.find(self._key(sequence, index, tokens), tokens)
            if block is None:
                break
            hits.append(block)
        return hits

    def _key(self, sequence: LiveSequence, index: int, tokens: bytes) -> bytes:
        """Key of a full block; those before it have theirs, because blocks are asked for in order."""
        keys = sequence.block_keys
        if index == len(keys):
            parent = keys[-1] if keys else root_key(self._model_key, 0, sequence.spec.cache_salt)
            keys.append(chain_key(parent, tokens))
        return keys[index]
