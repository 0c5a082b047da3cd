"""The servers that are measured: each is started, and stopped at the end of a block."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from bench.fanout.client import Body, Connection
from bench.fanout.http2 import GrpcConnection, read_arrivals
from bench.fanout.load import Arrival, Load
from bench.fanout.processes import Processes
from bench.machine import free_port
from clients import Client

MODEL = Path(".models/SmolLM2-135M-Instruct.Q4_1.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that runs. pace_log: of what sets its pace, None if it is not written down.

    connect: a connection that begins the calls of some streams. read: what came of an answer, given a step before all
    of its steps and whether it must be whole; raises ValueError. must_end: whether answers are waited for.
    """

    name: str
    processes: Processes
    pace_log: Path | None
    connect: Callable[[Load, Sequence[int]], Connection]
    read: Callable[[Body, int, bool], Iterator[Arrival]]
    must_end: bool = True


def _grpc_server(name: str, processes: Processes, port: int, pace_log: Path | None) -> Server:
    """One that speaks Octavo's protocol. One that has no pace to be measured against is not waited for."""

    def connect(load: Load, streams: Sequence[int]) -> GrpcConnection:
        return GrpcConnection(port, load, streams)

    return Server(
        name=name,
        processes=processes,
        pace_log=pace_log,
        connect=connect,
        read=read_arrivals,
        must_end=pace_log is not None,
    )


@contextmanager
def octavo(load: Load, num_blocks: int, flags: Sequence[str]) -> Iterator[Server]:
    """A scheduler with a worker that computes nothing. flags: of the scheduler."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w+") as log, tempfile.NamedTemporaryFile("w+") as pace_log:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.fake_worker", "--num-blocks", str(num_blocks)),
                *("--steps-per-second", str(load.steps_per_second), "--pace-log", pace_log.name),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        scheduler = None
        try:
            assert worker.stdout is not None
            scheduler = subprocess.Popen(
                [
                    *(sys.executable, "-m", "scheduler", "--model", str(MODEL), "--port", str(port)),
                    *("--worker", f"127.0.0.1:{int(worker.stdout.readline())}", "--log-level", "warning"),
                    *("--max-num-seqs", str(load.streams), "--max-num-batched-tokens", str(load.streams)),
                    *flags,
                ],
                stderr=log,
            )
            _wait_serving(port)
            yield _grpc_server("octavo", Processes(scheduler.pid), port, Path(pace_log.name))
        finally:
            for process in filter(None, (scheduler, worker)):
                process.kill()
                process.wait()
            sys.stderr.write(Path(log.name).read_text())


@contextmanager
def bare(load: Load) -> Iterator[Server]:
    """A server that only sends: `bench.fanout.bare_server`."""
    command = [sys.executable, "-m", "bench.fanout.bare_server", "--steps-per-second", str(load.steps_per_second)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield _grpc_server("bare grpc.aio", Processes(server.pid), int(server.stdout.readline()), None)
    finally:
        server.kill()
        server.wait()


def _wait_serving(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(60)
    with Client(f"127.0.0.1:{port}") as client:
        while not client.health(timeout=10):
            time.sleep(0.05)
