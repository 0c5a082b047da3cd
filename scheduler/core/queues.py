"""Queues that keep sequences in order of service: priority, then arrival."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from scheduler.core.live import LiveSequence


def _key(sequence: LiveSequence) -> tuple[int, int]:
    return sequence.key


class OrderedQueue:
    """Sequences sorted by `LiveSequence.key`. The head is served first, the tail is preempted first."""

    def __init__(self) -> None:
        self._items: list[LiveSequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self._items)

    def __getitem__(self, index: int) -> LiveSequence:
        return self._items[index]

    def __contains__(self, sequence: object) -> bool:
        if not isinstance(sequence, LiveSequence):
            return False
        index = bisect_left(self._items, sequence.key, key=_key)
        return index < len(self._items) and self._items[index] is sequence

    def __reversed__(self) -> Iterator[LiveSequence]:
        return reversed(self._items)

    def insert(self, sequence: LiveSequence) -> None:
        """Puts a sequence where its key belongs."""
        insort(self._items, sequence, key=_key)

    def remove(self, sequence: LiveSequence) -> None:
        """Takes a sequence out, wherever it is."""
        index = bisect_left(self._items, sequence.key, key=_key)
        assert self._items[index] is sequence
        del self._items[index]

    def clear(self) -> list[LiveSequence]:
        """Empties the queue; returns what was in it, in order."""
        items, self._items = self._items, []
        return items
