"""Host blocks: where the KV of swapped sequences lies. Each belongs to one sequence; nothing here is shared."""

from __future__ import annotations


class HostPool:
    """A free list."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Hands out `count` blocks, or None, and then nothing has changed: swapping can always decline."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def release(self, blocks: list[int]) -> None:
        """Takes blocks back; they are handed out again from the next plan on."""
        self._free += reversed(blocks)
