"""A contender's process as the driver sees it: one JSON line per question and per answer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_LOG_TAIL = 2000


class ContenderError(Exception):
    """It ended, took too long, or says that it failed."""


class Contender:
    """A context: leaving it kills the process. `hello` is its first line, which it writes once it is ready.

    Its standard error goes to `log`. Raises ContenderError if the first line does not come.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        timeout: float = 900,
    ) -> None:
        self.name = name
        self._log = log
        self._timeout = timeout
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=os.environ | (env or {}),
                start_new_session=True,
            )
        try:
            self.hello = self._read()
        except BaseException:
            self.close()
            raise

    def ask(self, **command: Any) -> Any:
        """The answer to a command. Raises ContenderError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        return self._read()

    def close(self) -> None:
        """Kills it, and what it started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        timer = threading.Timer(self._timeout, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> ContenderError:
        status = self._process.wait()
        tail = self._log.read_text(errors="replace")[-_LOG_TAIL:]
        return ContenderError(f"{self.name} exited with status {status} (log: {self._log}):\n{tail}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
