"""Queues that keep sequences in order of service: priority, then arrival."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from scheduler.core.live import LiveSequence


class OrderedQueue:
    """Sequences sorted by `LiveSequence.key`. The head is served first, the tail is preempted first."""

    def __init__(self) -> None:
        self._items: list[LiveSequence] = []
        self._keys: list[tuple[int, int]] = []  # of the items, so that a search calls no function per comparison

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self._items)

    def __getitem__(self, index: int) -> LiveSequence:
        return self._items[index]

    def __contains__(self, sequence: object) -> bool:
        if not isinstance(sequence, LiveSequence):
            return False
        index = bisect_left(self._keys, sequence.key)
        return index < len(self._items) and self._items[index] is sequence

    def __reversed__(self) -> Iterator[LiveSequence]:
        return reversed(self._items)

    def insert(self, sequence: LiveSequence) -> None:
        """Puts a sequence where its key belongs."""
        key, keys = sequence.key, self._keys
        if not keys or key >= keys[-1]:  # most come in order
            keys.append(key)
            self._items.append(sequence)
            return
        index = bisect_right(keys, key)
        keys.insert(index, key)
        self._items.insert(index, sequence)

    def remove(self, sequence: LiveSequence) -> None:
        """Takes a sequence out, wherever it is."""
        index = 0 if self._items[0] is sequence else bisect_left(self._keys, sequence.key)
        assert self._items[index] is sequence
        del self._keys[index]
        del self._items[index]

    def clear(self) -> list[LiveSequence]:
        """Empties the queue; returns what was in it, in order."""
        items, self._items, self._keys = self._items, [], []
        return items


class WaitingQueue(OrderedQueue):
    """Knows the sum of its sequences' prompt tokens, which never change, besides. num_prompt_tokens: that sum."""

    def __init__(self) -> None:
        super().__init__()
        self.num_prompt_tokens = 0

    def insert(self, sequence: LiveSequence) -> None:
        super().insert(sequence)
        self.num_prompt_tokens += len(sequence.spec.prompt)

    def remove(self, sequence: LiveSequence) -> None:
        super().remove(sequence)
        self.num_prompt_tokens -= len(sequence.spec.prompt)

    def clear(self) -> list[LiveSequence]:
        self.num_prompt_tokens = 0
        return super().clear()
