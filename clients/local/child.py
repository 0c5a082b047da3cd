"""One service as a child process.

A child leads a session of its own, so that Ctrl-C on the terminal reaches the parent alone, which then decides the
order of the shutdown. On Linux it dies with the parent, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

_LAUNCHER = Path(__file__).with_name("launcher.py")


class Child:
    """A running `python -m MODULE ARGUMENT...`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(cls, module: str, arguments: Sequence[str], log: IO[bytes] | None) -> Self:
        """Start it. `log` takes its stdout and stderr; None lets both go to the stderr of this process.

        -P: a folder named like the module, where the user happens to be, is not what is meant.
        """
        command = [sys.executable, str(_LAUNCHER), str(os.getpid()), "-P", "-m", module, *arguments]
        output = log or sys.stderr or asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        return cls(module, process)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    @property
    def fate(self) -> str:
        """How it ended, to follow its name in a sentence."""
        code = self._process.returncode
        if code is None:
            return "is running"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    async def wait(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        return await self._process.wait()

    async def stop(self, grace: float | None) -> int:
        """Ask it to end, and kill it after `grace` seconds (None: never). The exit status as from `wait`."""
        self.terminate()
        try:
            async with asyncio.timeout(grace):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def terminate(self) -> None:
        """Ask it to end."""
        if self.running:
            self._process.terminate()

    def interrupt(self) -> None:
        """Ask it to end at once, after `terminate`: two signals of one number that come close together are one."""
        if self.running:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill it and whatever it started."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
