"""What an operator's supervisor does: starts workers again that die."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from tests.integration.processes import ServiceProcess


@contextlib.contextmanager
def restarting(workers: Sequence[ServiceProcess]) -> Iterator[list[ServiceProcess]]:
    """Until the block ends. Gives the deaths noticed so far."""
    over = threading.Event()
    deaths: list[ServiceProcess] = []

    def watch() -> None:
        while not over.wait(0.05):
            for worker in workers:
                if not worker.running():
                    deaths.append(worker)
                    worker.start()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield deaths
    finally:
        over.set()
        thread.join()
