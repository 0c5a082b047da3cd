"""Deadlines of live sequences, earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Container

_SLACK = 64


class Deadlines:
    """A heap. Entries of ended sequences are left in it, but never more than a constant plus those of the live ones."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def earliest_ns(self) -> int | None:
        """The earliest deadline, perhaps of a sequence that has ended."""
        return self._heap[0][0] if self._heap else None

    def add(self, deadline_ns: int, sequence_id: int, live: Container[int], num_live: int) -> None:
        """Notes a deadline; forgets those that are not live when there are too many."""
        heapq.heappush(self._heap, (deadline_ns, sequence_id))
        if len(self._heap) > 2 * num_live + _SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in live]
            heapq.heapify(self._heap)

    def pop_expired(self, now_ns: int) -> list[int]:
        """Ids whose deadline has passed, in order of deadline."""
        expired = []
        while self._heap and self._heap[0][0] <= now_ns:
            expired.append(heapq.heappop(self._heap)[1])
        return expired
