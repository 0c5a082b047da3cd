"""Medians of times: by CUDA events on a GPU, by the host's clock on a CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Work = Callable[[], Any]

_WARM_UP_S = 0.1


class Timer:
    """Times work on a device."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device = device
        self._repeats = repeats

    def once(self, work: Work) -> float:
        """Seconds from the work's start to its end on the device."""
        return self._each([work])[0]

    def median(self, *works: Work) -> float:
        """Median of the seconds of one piece of work. Several pieces, equal but for the memory that they touch, take
        turns, so that none finds its data in the GPU's cache."""
        self._warm_up(works)
        turns = [works[turn % len(works)] for turn in range(max(self._repeats, len(works)))]
        return statistics.median(self._each(turns))

    def median_of_graph(self, *works: Work) -> float:
        """The same without the time that launches take on the host: a CUDA graph of all pieces, replayed. For work that
        is shorter than its launch."""
        if self.device.type == "cpu":
            return self.median(*works)
        for work in works:
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for work in works:
                work()
        return self.median(graph.replay) / len(works)

    def _warm_up(self, works: Sequence[Work]) -> None:
        """Each piece once, which compiles what it needs, and on a GPU for as long as the clocks of an idle one take to
        rise."""
        for work in works:
            work()
        if self.device.type == "cpu":
            return
        torch.cuda.synchronize()
        end = time.perf_counter() + _WARM_UP_S
        while time.perf_counter() < end:
            for work in works:
                work()
            torch.cuda.synchronize()

    def _each(self, works: Sequence[Work]) -> list[float]:
        if self.device.type == "cpu":
            return [_host_seconds(work) for work in works]
        torch.cuda.synchronize()
        pairs = []
        for work in works:
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            work()
            pair[1].record()
            pairs.append(pair)
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]


def _host_seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
