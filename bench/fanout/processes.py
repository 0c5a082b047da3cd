"""CPU time and memory of a server's processes, from /proc, once a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.machine import process_seconds

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Sample(NamedTuple):
    """cpu_s: user and system time of each process so far. resident: bytes of all. client_cpu_s: of this process."""

    at_s: float
    cpu_s: tuple[float, ...]
    resident: int
    client_cpu_s: float


class Processes:
    """A process and those that descend from it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def pids(self) -> list[int]:
        """Now, the first one first."""
        pids = [self._pid]
        for pid in pids:
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return pids

    def names(self) -> list[str]:
        """Of their programs, in the order of `pids`."""
        return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in self.pids()]

    def sample(self) -> Sample:
        """Now."""
        pids = self.pids()
        return Sample(
            time.monotonic(),
            tuple(map(process_seconds, pids)),
            sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * _PAGE,
            time.process_time(),
        )

    @contextmanager
    def watch(self) -> Iterator[list[Sample]]:
        """The samples taken while the block runs."""
        samples: list[Sample] = [self.sample()]
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(1):
                samples.append(self.sample())

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield samples
        finally:
            stop.set()
            watching.join()
