"""Physical KV cache blocks: who holds how many references, and which block to hand out next.

A block is in exactly one of three states, so `num_free + num_cached + num_referenced == num_blocks` always:
free (holds nothing), cached (unreferenced, but the prefix cache can find it) and referenced (in at least one block
table). Free blocks are handed out first; then cached ones, least recently released first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice


class BlockPool:
    """Counts references to blocks and evicts cached ones when free ones run out.

    on_evict is called with the cached blocks that are about to be handed out, so that the prefix cache forgets them.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[list[int]], None]) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks that the prefix cache can find."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `take` could hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def num_referenced(self) -> int:
        """Blocks in at least one block table."""
        return self.num_blocks - self.num_available

    def references(self, block: int) -> int:
        """Number of block tables that name the block."""
        return self._references[block]

    def take(self, count: int) -> list[int] | None:
        """Hands out `count` blocks with one reference each, or None, and then nothing has changed."""
        free, cached, references = self._free, self._cached, self._references
        if count > len(free) + len(cached):
            return None
        kept = max(len(free) - count, 0)
        taken = free[: kept - 1 : -1] if kept else free[::-1]
        del free[kept:]
        if len(taken) < count:
            evicted = list(islice(cached, count - len(taken)))
            for block in evicted:
                del cached[block]
            self._on_evict(evicted)
            taken += evicted
        for block in taken:
            references[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each of these cached or referenced blocks."""
        references, cached = self._references, self._cached
        for block in blocks:
            if references[block] == 0:
                del cached[block]
            references[block] += 1

    def release(self, blocks: Iterable[int], keep: Callable[[int], bool]) -> None:
        """Drops one reference each, in the given order; those that `keep` says hold a reusable prefix stay cached.

        The order is the order of later eviction, so a block table is given tail first.
        """
        references = self._references
        for block in blocks:
            count = references[block] = references[block] - 1
            if count == 0:
                if keep(block):
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def uncache(self, block: int) -> None:
        """Makes a cached block free, because the prefix cache forgot it; a referenced one stays referenced."""
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def is_cached(self, block: int) -> bool:
        """Whether the block is unreferenced and findable."""
        return block in self._cached

    def num_cached_of(self, blocks: Iterable[int]) -> int:
        """How many of these different blocks are unreferenced and findable."""
        return sum(map(self._cached.__contains__, blocks))
