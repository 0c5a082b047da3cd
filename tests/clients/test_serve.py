"""`octavo serve` and `octavo demo` with real services: start, a worker's death, shutdown, and every way to end badly.

The model is a checkpoint whose continuation is known: two tokens that follow each other for ever.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from clients import Client, UnavailableError
from tests.integration.processes import WAIT_CAP_S, child_environment, free_port, wait_until
from tests.integration.scrape import Scrape
from tests.oracle.lookup import LookupOracle

CYCLE = {100: 101, 101: 100}
SMALL = ("--num-gpu-blocks-override=64", "--threads=1", "--dtype=float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return LookupOracle(CYCLE).write(tmp_path_factory.mktemp("cycle"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """A running `octavo serve` and the file with all that it and its services print."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def ready(self) -> bool:
        return "Octavo serves" in self.log.read_text()

    @property
    def target(self) -> str:
        """Where it says that it serves."""
        said = re.search(r"^Octavo serves \S+ on (\S+)$", self.log.read_text(), re.MULTILINE)
        assert said
        return said[1]

    def child(self, module: str) -> int:
        """Process id of the service."""
        for pid in self.children():
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        raise LookupError(f"no {module} among the children")

    def children(self) -> list[int]:
        pid = self.process.pid
        # One file per thread; asyncio starts its children in the main one.
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait(self) -> int:
        return self.process.wait(WAIT_CAP_S)


@contextmanager
def serving(
    model: Path,
    folder: Path,
    *arguments: str,
    where: Sequence[str] = ("--port=0",),
    stderr: int | None = None,
    until_ready: bool = True,
) -> Iterator[Serve]:
    """Starts it in `folder`, which is not the repository's.

    where: the arguments that say where it listens. stderr: a descriptor, None for the same file as stdout.
    """
    log = folder / "serve.log"
    command = [sys.executable, "-m", "clients.cli", "serve", f"--model={model}", *SMALL, *where, *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=child_environment(), stdout=file, stderr=stderr or file)
    serve = Serve(process=process, log=log)
    try:
        if until_ready:
            wait_until(lambda: serve.ready or process.poll() is not None, "octavo serve is ready or has ended")
            assert serve.ready, log.read_text()
        yield serve
    finally:
        process.kill()
        process.wait()


def gone(pids: Sequence[int]) -> bool:
    """Whether none of them runs any more."""
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_killed_worker_is_replaced_and_ctrl_c_drains(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path) as serve:
        children = [serve.child("scheduler"), serve.child("worker")]
        with Client(serve.target) as client, client.generate(token_ids=[100], temperature=0, max_tokens=900) as stream:
            ids = list(next(stream).token_ids)
            os.kill(serve.child("worker"), signal.SIGKILL)
            ids += [token_id for delta in stream for token_id in delta.token_ids]
            assert client.stats().worker.connected
        assert ids == LookupOracle(CYCLE).continuation([100], 900)
        report = "the worker was killed by SIGKILL; starting it again"
        wait_until(lambda: report in serve.log.read_text(), "the worker's death is reported")
        children.append(serve.child("worker"))
        assert children[2] != children[1]
        serve.process.send_signal(signal.SIGINT)
        assert serve.wait() == 0
        assert gone(children)


@pytest.mark.slow
def test_a_hung_worker_is_killed_and_replaced(model: Path, tmp_path: Path) -> None:
    """Its death alone would tell `octavo serve`; a worker that stands still tells nobody but the scheduler."""
    with serving(model, tmp_path, "--step-timeout=0.5") as serve:
        with Client(serve.target) as client, client.generate(token_ids=[100], temperature=0, max_tokens=900) as stream:
            ids = list(next(stream).token_ids)
            hung = serve.child("worker")
            os.kill(hung, signal.SIGSTOP)
            ids += [token_id for delta in stream for token_id in delta.token_ids]
        assert ids == LookupOracle(CYCLE).continuation([100], 900)
        assert gone([hung])
        log = serve.log.read_text()
        assert "the worker runs, but has no stream with the scheduler for 5 s; killing it" in log
        assert "the worker was killed by SIGKILL; starting it again" in log
        serve.process.send_signal(signal.SIGTERM)
        assert serve.wait() == 0


def works(target: str) -> bool:
    with Client(target) as client:
        return client.complete(token_ids=[100], temperature=0, max_tokens=3).token_ids == (101, 100, 101)


def test_addresses_come_from_the_file_and_metrics_ports_from_the_command_line(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    port, worker_port = free_port(), free_port()
    file.write_text(
        f"scheduler:\n  host: localhost\n  port: {port}\n  worker: nowhere:1\n"
        f"worker:\n  host: 0.0.0.0\n  port: {worker_port}\n"
    )
    ports = free_port(), free_port()
    metrics = [f"--metrics-port={ports[0]}", f"--worker-metrics-port={ports[1]}"]
    with serving(model, tmp_path, where=[f"--config={file}", *metrics]) as serve:
        assert serve.target == f"localhost:{port}"
        assert works(serve.target)
        with Client(serve.target) as client:
            assert client.stats().worker.address == f"127.0.0.1:{worker_port}"
        assert Scrape.of(ports[0]).value("vllm:generation_tokens_total") == 3
        assert Scrape.of(ports[1]).value("octavo:worker_model_loaded") == 1


def test_ipv6_addresses_are_served_in_brackets(model: Path, tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    file = tmp_path / "octavo.yaml"
    file.write_text("worker:\n  host: '::'\n")
    with serving(model, tmp_path, where=["--host=::1", "--port=0", f"--config={file}"]) as serve:
        assert re.fullmatch(r"\[::1\]:\d+", serve.target)
        assert works(serve.target)
        with Client(serve.target) as client:
            assert client.stats().worker.address.startswith("[::1]:")


@pytest.mark.parametrize("reader", ["a full device", "nobody"])
def test_it_serves_on_when_nobody_takes_its_log(model: Path, tmp_path: Path, reader: str) -> None:
    """Logs of both services go where the command's standard error goes; the worker's death makes all three write."""
    if reader == "nobody":
        unread, written = os.pipe()
        os.close(unread)
    else:
        written = os.open("/dev/full", os.O_WRONLY)
    with serving(model, tmp_path, stderr=written) as serve:
        os.close(written)
        worker = serve.child("worker")
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: gone([worker]), "the worker has ended")
        assert works(serve.target)
        serve.process.send_signal(signal.SIGINT)
        assert serve.wait() == 0


def test_nothing_is_left_when_the_command_is_killed(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path) as serve:
        children = serve.children()
        assert len(children) == 2
        serve.process.kill()
        wait_until(lambda: gone(children), "the services have ended")


def test_a_dead_scheduler_ends_everything(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path) as serve:
        children = serve.children()
        os.kill(serve.child("scheduler"), signal.SIGKILL)
        assert serve.wait() == 1
        wait_until(lambda: gone(children), "the worker has ended")
        assert "octavo serve: the scheduler was killed by SIGKILL" in serve.log.read_text()


def test_a_second_signal_does_not_wait_for_the_drain(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--drain-grace=3600") as serve:
        children = serve.children()
        os.kill(serve.child("scheduler"), signal.SIGSTOP)  # it will not drain
        serve.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in serve.log.read_text(), "it drains")
        serve.process.send_signal(signal.SIGTERM)
        assert serve.wait() == 128 + signal.SIGTERM
        wait_until(lambda: gone(children), "the services have ended")


def is_stopped(pid: int) -> bool:
    return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()


def has_yet_to_take(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    pending = int(re.search(r"^ShdPnd:\s*([0-9a-f]+)", status, re.MULTILINE)[1], 16)  # type: ignore[index]
    return bool(pending & 1 << number - 1)


def test_a_second_signal_tells_the_callers_that_it_is_over(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--drain-grace=3600") as serve:
        children = serve.children()
        with Client(serve.target) as client, client.generate(token_ids=[100], temperature=0, max_tokens=900) as stream:
            next(stream)
            os.kill(serve.child("worker"), signal.SIGSTOP)  # the request does not end by itself
            scheduler = serve.child("scheduler")
            os.kill(scheduler, signal.SIGSTOP)  # it is slow, and gets both signals at once
            wait_until(lambda: is_stopped(scheduler), "it is stopped, which others of its signals may precede")
            serve.process.send_signal(signal.SIGTERM)
            wait_until(lambda: has_yet_to_take(scheduler, signal.SIGTERM), "the first signal is passed on")
            serve.process.send_signal(signal.SIGTERM)
            wait_until(lambda: has_yet_to_take(scheduler, signal.SIGINT), "the second signal is passed on")
            os.kill(scheduler, signal.SIGCONT)
            with pytest.raises(UnavailableError) as lost:
                list(stream)
        assert lost.value.reason == "SHUTDOWN"
        assert serve.wait() == 128 + signal.SIGTERM
        assert "request lost" in serve.log.read_text()
        wait_until(lambda: gone(children), "the services have ended")


def test_a_service_refuses_its_flag_before_anything_is_served(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--block-size=many", until_ready=False) as serve:
        assert serve.wait() == 1
        log = serve.log.read_text()
    assert "argument --block-size: invalid int value: 'many'" in log
    assert "octavo serve: the worker exited with status 2 before it served" in log


def test_the_demo_answers_and_stops(model: Path, tmp_path: Path) -> None:
    """Its question ends in other tokens than the cycle's, which this model follows with EOS at once."""
    command = [sys.executable, "-m", "clients.cli", "demo", f"--model={model}"]
    demo = subprocess.run(
        command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, timeout=WAIT_CAP_S, check=False
    )
    assert demo.returncode == 0, demo.stderr
    assert "> What is the capital of France?" in demo.stdout
    assert "1 tokens, time to first token" in demo.stdout
    assert demo.stderr == ""
