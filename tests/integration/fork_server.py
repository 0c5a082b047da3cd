"""Workers as children of a process that has imported torch and transformers once.

These imports are nine tenths of a worker's start. A forked worker runs `python -m worker`'s module from its first line
on, with arguments, environment and output of its own, and is a process like any other: it has an id, takes signals, and
has an exit code. What the interpreter itself does at its start is left to the tests that start one (`tests/worker`,
`tests/clients/test_serve.py`).
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

_PRELOADED = ("torch", "numpy", "uvloop", "structlog", "transformers.models.llama.configuration_llama")
"""Libraries without threads of their own after their import; gRPC is not among them."""


class ForkedProcess:
    """A running module, with the part of `subprocess.Popen` that the tests need. Environment variables that a library
    of `_PRELOADED` reads when it is imported have no effect."""

    def __init__(
        self, module: str, arguments: Sequence[str], *, env: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        run = (module, list(arguments), dict(env), folder, log)
        self._process = _context().Process(target=_run, args=run, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, the negative of a signal's number, or None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """`returncode`."""
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Waits for the end; subprocess.TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, to a stopped process too."""
        if self.returncode is None:
            os.kill(self.pid, number)


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _run(module: str, arguments: list[str], env: dict[str, str], folder: Path, log: Path) -> None:
    """In the child: becomes `python -m module arguments`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
