"""Block tables: gives sequences their blocks, finds and shares cached prefixes, takes blocks back.

The reference count of a block is the number of block tables that name it, plus one while a fork will copy it. Whatever
allocates does so all or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.core.block_pool import BlockPool
from scheduler.core.config import CoreConfig
from scheduler.core.live import LiveSequence, blocks_for, max_cached_tokens
from scheduler.core.prefix_cache import BYTES_PER_TOKEN, PrefixCache, chain_key, root_key, token_bytes


@dataclass(frozen=True, slots=True)
class Allocation:
    """blocks: those for the table's end, or, from `admit`, those for the siblings. num_cached_tokens: tokens that were
    found in the prefix cache."""

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

    def shortage(
        self, sequence: LiveSequence, watermark: int, num_more: int = 0, victims: Iterable[LiveSequence] = ()
    ) -> int:
        """Blocks that are missing for `admit` to succeed if the victims gave up theirs; 0 or less: none."""
        hits = self.match(sequence)
        named = Counter(block for victim in victims for block in victim.blocks)
        # A hit that only victims name serves the sequence as a hit, and not as a block to be handed out as well.
        freed = sum(self.pool.references(block) == count for block, count in named.items() if block not in hits)
        return self._need(sequence, hits) + num_more + watermark - self._available_besides(hits) - freed

    def admit(self, sequence: LiveSequence, watermark: int, num_more: int = 0) -> Allocation | None:
        """Gives a sequence without blocks all that its known tokens need, cached prefix blocks first.

        num_more: blocks that are handed out besides, for its siblings. None if fewer than `watermark` blocks would stay
        available.
        """
        hits = self.match(sequence)
        need = self._need(sequence, hits)
        if self._available_besides(hits) - need - num_more < watermark:
            return None
        for block in hits:
            self.pool.share(block)
        fresh = self.pool.take(need + num_more)
        assert fresh is not None, "availability was checked"
        sequence.blocks = hits + fresh[:need]
        sequence.num_indexed = len(hits)
        return Allocation(tuple(fresh[need:]), len(hits) * self._block_size)

    def _need(self, sequence: LiveSequence, hits: list[int]) -> int:
        return blocks_for(len(sequence.token_ids), self._block_size) - len(hits)

    def _available_besides(self, hits: list[int]) -> int:
        """Blocks that could be handed out if these were in use."""
        return self.pool.num_available - sum(self.pool.is_cached(block) for block in hits)

    def fork(self, leader: LiveSequence, child: LiveSequence, own_block: int) -> None:
        """Gives a child the leader's blocks before the prompt's last token, by reference, and its own block there."""
        child.blocks = leader.blocks[: (len(child.spec.prompt) - 1) // self._block_size]
        for block in child.blocks:
            self.pool.share(block)
        child.blocks.append(own_block)

    def pin(self, block: int) -> None:
        """Holds a referenced block that an unsent copy will read."""
        self.pool.share(block)

    def unpin(self, block: int) -> None:
        """Ends a pin."""
        self.pool.release((block,), self.prefix_cache.__contains__)

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

    def index(self, sequence: LiveSequence, num_computed: int) -> None:
        """Makes blocks findable whose tokens are all known and whose KV is planned, that of `num_computed` tokens.

        A plan sent later reads them after they were written, because a worker executes plans in order; a row of the
        same plan may too, because each layer writes all its KV before it attends.
        """
        first = sequence.num_indexed
        full = min(num_computed, len(sequence.token_ids)) // self._block_size
        if full <= first or not self._caching:
            return
        spec, insert = sequence.spec, self.prefix_cache.insert
        for key, tokens, block in zip(*self._keys(sequence, first, full), sequence.blocks[first:full], strict=True):
            insert(key, tokens, block, sequence.block_keys[0], tenant=spec.tenant, cache_salt=spec.cache_salt)
        sequence.num_indexed = full

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

    def match(self, sequence: LiveSequence) -> list[int]:
        """The longest run of cached blocks that begins this sequence, within `max_cached_tokens`."""
        if not self._caching:
            return []
        num_blocks = max_cached_tokens(len(sequence.token_ids), self._block_size) // self._block_size
        hits: list[int] = []
        for key, tokens in zip(*self._keys(sequence, 0, num_blocks), strict=True):
            block = self.prefix_cache.find(key, tokens)
            if block is None:
                break
            hits.append(block)
        return hits

    def _keys(self, sequence: LiveSequence, first: int, end: int) -> tuple[list[bytes], list[bytes]]:
        """Keys and tokens of the full blocks first .. end-1. Keys are kept: those before have theirs."""
        size, keys = self._block_size, sequence.block_keys
        content = token_bytes(sequence.token_ids[first * size : end * size])
        width = size * BYTES_PER_TOKEN
        tokens = [content[start : start + width] for start in range(0, len(content), width)]
        if len(keys) < end:
            parent = keys[-1] if keys else root_key(self._model_key, 0, sequence.spec.cache_salt)
            for block_tokens in tokens[len(keys) - first :]:
                parent = chain_key(parent, block_tokens)
                keys.append(parent)
        return keys[first:end], tokens
