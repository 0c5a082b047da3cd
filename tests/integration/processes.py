"""Services as child processes: start, kill, stop, restart on the same port, and always clean up.

Every process writes its log to a file. A failing test shows the tails of the logs of all processes that it touched (see
`conftest.py`). Waiting is polling with a cap. Workers are forked from a process that has the large libraries already
(see `fork_server.py`), unless a test gives them an environment of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from clients import Client, OctavoError
from tests.integration.fork_server import ForkedProcess

REPOSITORY = Path(__file__).resolve().parents[2]
_T = TypeVar("_T")

WAIT_CAP_S = 60.0
LOG_TAIL_LINES = 40
_FORKED = ("worker", "tests.integration.deadly_worker")


# Below the ports that Linux gives to outgoing connections, one of which could take a service's before it listens. From
# a random one on, since another run of the tests may be under way on the machine.
_PORTS = range(10_000, 32_000)
_FIRST = secrets.randbelow(len(_PORTS))
_upcoming_ports = itertools.cycle([*_PORTS[_FIRST:], *_PORTS[:_FIRST]])


def free_port() -> int:
    """A loopback port that nothing listens on; taken up front so that a restarted service keeps its address.

    One that the system picks is free again at once, and was seen to be given to two services of a test.
    """
    while True:
        port: int = next(_upcoming_ports)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def wait_until(probe: Callable[[], _T], what: str, cap_s: float = WAIT_CAP_S) -> _T:
    """Calls the probe until its answer is true and returns that; TimeoutError that names `what` after cap_s seconds."""
    give_up = time.monotonic() + cap_s
    while not (answer := probe()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {cap_s:.0f} s: {what}")
        time.sleep(0.01)
    return answer


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a service: this repository's packages first, no network, and what the test adds."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "protos" / "gen")])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **(extra or {})}


class ServiceProcess:
    """A gRPC service on a port of 127.0.0.1. `command` is what follows the interpreter; it must make the service listen
    on `port`."""

    touched: ClassVar[list[ServiceProcess]] = []
    """Processes since the last `forget_ended`, for the logs of a failing test."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.port = port
        self.log = log
        self._command = command
        self._env = child_environment(env)
        self._fork = command[0] == "-m" and command[1] in _FORKED and not env
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        ServiceProcess.touched.append(self)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes] | ForkedProcess:
        """The process that was started last."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process

    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> ServiceProcess:
        """Starts the process, or starts it again after its end; the log is appended to."""
        if self.running():
            raise RuntimeError(f"{self.name} runs already")
        if self._fork:
            _, module, *arguments = self._command
            self._process = ForkedProcess(module, arguments, env=self._env, folder=REPOSITORY, log=self.log)
            return self
        with self.log.open("ab") as log:
            command = [sys.executable, *self._command]
            self._process = subprocess.Popen(
                command, env=self._env, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def serving(self) -> bool:
        """Whether grpc.health.v1 answers SERVING for the server as a whole."""
        if not self._listens():  # a channel costs a hundred times more to find out
            return False
        with Client(self.address) as client:
            try:
                return client.health(timeout=2)
            except OctavoError:
                return False

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def wait_serving(self) -> ServiceProcess:
        """Waits for SERVING; RuntimeError with the log if the process ends before."""
        wait_until(lambda: self.serving() or not self.running(), f"{self.name} on {self.address} is SERVING")
        if not self.running():
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}\n{self.log_tail()}")
        return self

    def kill(self) -> None:
        """SIGKILL, also of a stopped process; returns when it is gone."""
        if self.running():
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(WAIT_CAP_S)

    def pause(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM; returns at once."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Waits for the end and returns the exit code."""
        return self.process.wait(WAIT_CAP_S)

    def log_text(self) -> str:
        """All that the process wrote, over all its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        """The last lines of the log."""
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])

    @classmethod
    def forget_ended(cls) -> None:
        """Drops ended processes from `touched`: their test is over."""
        cls.touched = [process for process in cls.touched if process.running()]
