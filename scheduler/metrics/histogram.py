"""A histogram that costs its owner a dictionary access per value and can be sent to another process and added up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of durations by upper bound.

    bounds: seconds, ascending; a last bucket without a bound follows. counts: per bucket, not cumulative. total_s: sum
    of all values in seconds.
    """

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self.counts)

    def observe(self, seconds: float, times: int = 1) -> None:
        """Counts a value that came up this many times."""
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.total_s += seconds * times

    def add(self, other: Histogram) -> None:
        """Adds another one of the same bounds to this one."""
        self.counts = [mine + others for mine, others in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it), as Prometheus has them."""
        pairs, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            pairs.append((bound, float(so_far)))
        return pairs
