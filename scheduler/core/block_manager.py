"""Block tables: gives sequences their blocks, finds and shares cached prefixes, takes blocks back.

The reference count of a block is the number of block tables that name it, plus one while a fork will copy it. Whatever
allocates does so all or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scheduler.core.block_pool import BlockPool
from scheduler.core.config import CoreConfig
from scheduler.core.live import LiveSequence, blocks_for, max_cached_tokens
from scheduler.core.prefix_cache import BYTES_PER_TOKEN, PrefixCache, PrefixNode, token_bytes


class Admitted(NamedTuple):
    """num_cached_tokens: tokens that were found in the prefix cache. siblings: blocks for the siblings."""

    num_cached_tokens: int
    siblings: list[int]


class BlockManager:
    """Owns the pool, the prefix cache and the `blocks`, `nodes` and `num_indexed` of every live sequence."""

    def __init__(self, config: CoreConfig) -> None:
        self._block_size = config.block_size
        self._block_bytes = config.block_size * BYTES_PER_TOKEN
        self._caching = config.enable_prefix_caching
        self.reset(config.num_blocks)

    def reset(self, num_blocks: int) -> None:
        """Forgets all contents: the worker that held them is gone. Sequences must have been `forget`-ed."""
        self.prefix_cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self.prefix_cache.drop)

    def shortage(
        self, sequence: LiveSequence, watermark: int, num_more: int = 0, victims: Iterable[LiveSequence] = ()
    ) -> int:
        """Blocks that are missing for `admit` to succeed if the victims gave up theirs; 0 or less: none."""
        hits = {node.block for node in self._find_for(sequence)}
        named = Counter(block for victim in victims for block in victim.blocks)
        # A hit that only victims name serves the sequence as a hit, and not as a block to be handed out as well.
        freed = sum(self.pool.references(block) == count for block, count in named.items() if block not in hits)
        need = blocks_for(len(sequence.token_ids), self._block_size) - len(hits) + num_more + watermark
        return need - (self.pool.num_available - self.pool.num_cached_of(hits)) - freed

    def admit(self, sequence: LiveSequence, watermark: int, num_more: int = 0) -> Admitted | None:
        """Gives a sequence without blocks all that its known tokens need, cached prefix blocks first.

        num_more: blocks that are handed out besides, for its siblings. None if fewer than `watermark` blocks would stay
        available.
        """
        pool = self.pool
        nodes = self._find_for(sequence)
        hits = [node.block for node in nodes]
        need = blocks_for(len(sequence.token_ids), self._block_size) - len(hits)
        spare = pool.num_available - need - num_more - watermark
        if spare < len(hits) and spare < pool.num_cached_of(hits):  # hits that others hold take nothing
            return None
        pool.share(hits)
        fresh = pool.take(need + num_more)
        assert fresh is not None, "availability was checked"
        sequence.blocks = hits + fresh[:need]
        sequence.nodes = nodes
        sequence.num_indexed = len(nodes)
        return Admitted(len(nodes) * self._block_size, fresh[need:])

    def fork(self, leader: LiveSequence, child: LiveSequence, own_block: int) -> None:
        """Gives a child the leader's blocks before the prompt's last token, by reference, and its own block there."""
        shared = leader.blocks[: (len(child.spec.prompt) - 1) // self._block_size]
        self.pool.share(shared)
        child.blocks = [*shared, own_block]

    def pin(self, block: int) -> None:
        """Holds a referenced block that an unsent copy will read."""
        self.pool.share((block,))

    def unpin(self, block: int) -> None:
        """Ends a pin."""
        self.pool.release((block,), self.prefix_cache.holds)

    def append(self, sequence: LiveSequence, num_tokens: int) -> list[int] | None:
        """Lets the table grow to hold `num_tokens` tokens. Returns the blocks that it got, None if they are not
        there."""
        need = blocks_for(num_tokens, self._block_size) - len(sequence.blocks)
        if need <= 0:
            return []
        fresh = self.pool.take(need)
        if fresh is not None:
            sequence.blocks += fresh
        return fresh

    def append_each(self, sequences: list[LiveSequence]) -> list[tuple[int, int, int]] | None:
        """Lets the tables of these grow by a block each.

        Returns (row, index, block) of each, or None if there are not enough, and then nothing has changed.
        """
        fresh = self.pool.take(len(sequences))
        if fresh is None:
            return None
        edits = []
        for sequence, block in zip(sequences, fresh, strict=True):
            edits.append((sequence.row, len(sequence.blocks), block))
            sequence.blocks.append(block)
        return edits

    def index(self, sequence: LiveSequence, num_computed: int) -> None:
        """Makes blocks findable whose tokens are all known and whose KV is planned, that of `num_computed` tokens.

        Blocks of the prompt are offered as they are planned. Those of sampled tokens are when their sequence leaves its
        row: until then hardly anybody could ask for them, and one by one they cost more than all else in a step.
        A plan sent later reads them after they were written, because a worker executes plans in order; a row of the
        same plan may too, because each layer writes all its KV before it attends.
        """
        size, nodes = self._block_size, sequence.nodes
        full = min(num_computed, len(sequence.token_ids)) // size
        if full <= sequence.num_indexed or not self._caching:
            return
        first = len(nodes)
        spec, cache = sequence.spec, self.prefix_cache
        content = sequence.token_ids[first * size : full * size].tobytes()
        parent = nodes[first - 1] if first else cache.root(spec.cache_salt)
        nodes += cache.insert(parent, content, self._block_bytes, sequence.blocks[first:full], spec.tenant)
        sequence.num_indexed = full

    def release(self, sequence: LiveSequence) -> None:
        """Takes a sequence's blocks back; those with a known prefix stay cached, its tail evicted before its head."""
        self.pool.release(reversed(sequence.blocks), self.prefix_cache.holds)
        self.forget(sequence)

    def forget(self, sequence: LiveSequence) -> None:
        """Empties a sequence's table without touching the pool."""
        sequence.blocks = []
        sequence.num_indexed = 0

    def distrust(self, sequence: LiveSequence) -> None:
        """Takes every block that may hold KV derived from this sequence's out of the prefix cache.

        KV depends on all tokens before it, and blocks change hands, so that is every block whose prefix begins as this
        sequence does: branches that sharers added, and what sequences that ended left behind, too.
        """
        if sequence.nodes:
            blocks = self.prefix_cache.below(sequence.nodes[0])
            self.prefix_cache.drop(blocks)
            for block in blocks:
                self.pool.uncache(block)

    def find(self, token_ids: Sequence[int], cache_salt: str) -> list[PrefixNode]:
        """The longest run of cached blocks that begins these tokens, within `max_cached_tokens`."""
        return self._find(token_ids, cache_salt, max_cached_tokens(len(token_ids), self._block_size))

    def _find_for(self, sequence: LiveSequence) -> list[PrefixNode]:
        return self._find(sequence.token_ids, sequence.spec.cache_salt, sequence.max_cached_tokens(self._block_size))

    def _find(self, token_ids: Sequence[int], cache_salt: str, most: int) -> list[PrefixNode]:
        if not self._caching:
            return []
        return self.prefix_cache.find(cache_salt, token_bytes(token_ids[:most]), self._block_bytes)
