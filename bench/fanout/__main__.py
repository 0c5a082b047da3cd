"""`python -m bench.fanout`: 500 streams of one token in 10 ms each, for a minute.

A fake worker sets the pace; scheduler, front ends and wire are the real ones. One line of JSON goes to standard output
and to bench/results/fanout.jsonl: delivered tokens per second (the pace is 50,000), CPU of the scheduler's processes
per delivered token, tokens per message, and memory at the start and the end of the steady time, in which the ids of
live sequences grow by about 40 bytes per token. Fails if a token is lost, doubled or out of order.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from bench.fanout.client import Connection, Received, run
from clients import Client
from octavo.serving.v1 import generation_pb2, sampling_pb2

_MODEL = Path(".models/SmolLM2-135M-Instruct.Q4_1.gguf")
_RESULTS = Path("bench/results/fanout.jsonl")
_TICKS = os.sysconf("SC_CLK_TCK")
_NUM_BLOCKS = 1 << 18


class Processes:
    """A process and its children, as far as /proc knows them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def pids(self) -> list[int]:
        """Now."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return [self._pid, *map(int, children)]

    def cpu_s(self) -> list[float]:
        """User and system time of each so far."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids()]
        return [(int(field[11]) + int(field[12])) / _TICKS for field in fields]

    def resident_mb(self) -> float:
        """Resident memory of all."""
        return sum(
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") for pid in self.pids()
        ) / (1 << 20)


def measure(arguments: argparse.Namespace, scheduler_args: Sequence[str]) -> Iterator[dict[str, Any]]:
    """All streams, as often as asked, from one scheduler."""
    worker = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench.fake_worker"),
            *("--steps-per-second", str(arguments.steps_per_second), "--num-blocks", str(_NUM_BLOCKS)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    scheduler = None
    with tempfile.NamedTemporaryFile("w+") as log:
        try:
            assert worker.stdout is not None
            port = _free_port()
            scheduler = subprocess.Popen(
                [
                    *(sys.executable, "-m", "scheduler", "--model", str(_MODEL), "--port", str(port)),
                    *("--worker", f"127.0.0.1:{int(worker.stdout.readline())}", "--log-level", "warning"),
                    *("--max-num-seqs", str(arguments.streams), "--max-num-batched-tokens", str(arguments.streams)),
                    *scheduler_args,
                ],
                stderr=log,
            )
            _wait_serving(port)
            for _ in range(arguments.rounds):
                yield _deliver(arguments, port, Processes(scheduler.pid))
        finally:
            for process in filter(None, (scheduler, worker)):
                process.kill()
                process.wait()
            sys.stderr.write(Path(log.name).read_text())


def measure_bare(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same of a server that only sends (`bench.fanout.bare_server`): whole run, begin and end included."""
    command = [sys.executable, "-m", "bench.fanout.bare_server", "--steps-per-second", str(arguments.steps_per_second)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        processes, begin_s = Processes(server.pid), time.monotonic()
        port, (begin_cpu,) = int(server.stdout.readline()), processes.cpu_s()
        received = _run_streams(arguments, port)
        seconds, (end_cpu,) = time.monotonic() - begin_s, processes.cpu_s()
    finally:
        server.kill()
        server.wait()
    tokens = sum(map(_num_tokens, received))
    return {
        "server": "bare grpc.aio",
        "streams": arguments.streams,
        "steps_per_second_asked": arguments.steps_per_second,
        "tokens_per_s": round(tokens / seconds),
        "cpu_us_per_token": round(1e6 * (end_cpu - begin_cpu) / tokens, 2),
        "cpu_share_of_each_process": [round((end_cpu - begin_cpu) / seconds, 2)],
        **_messages(received),
        "seconds": round(seconds, 1),
    }


def _run_streams(arguments: argparse.Namespace, port: int) -> list[Received]:
    """What all streams brought, checked."""
    num_tokens = int(arguments.seconds * arguments.steps_per_second)
    asked = sampling_pb2.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    requests = [
        generation_pb2.GenerateRequest(token_ids=generation_pb2.TokenIds(ids=[1 + index]), sampling_params=asked)
        for index in range(arguments.streams)
    ]
    share = arguments.connections
    connections = [Connection(port, requests[place::share]) for place in range(share)]
    try:
        run(connections, 20 * arguments.seconds + 60)
        received = [one for connection in connections for one in connection.received()]
    finally:
        for connection in connections:
            connection.close()
    _check(received, num_tokens)
    return received


def _deliver(arguments: argparse.Namespace, port: int, processes: Processes) -> dict[str, Any]:
    samples: list[tuple[float, list[float], float, int]] = []
    stop = threading.Event()

    def sample() -> None:
        with Client(f"127.0.0.1:{port}") as client:
            while not stop.wait(1):
                generated = client.stats(timeout=30).counters.generated_tokens
                samples.append((time.monotonic(), processes.cpu_s(), processes.resident_mb(), generated))

    watching = threading.Thread(target=sample)
    watching.start()
    try:
        received = _run_streams(arguments, port)
    finally:
        stop.set()
        watching.join()
    # Tokens stop to grow when the last is generated; the streams go on until it is delivered.
    generating = [one for one in samples if samples[0][3] < one[3] < samples[-1][3]]
    (begin_s, begin_cpu, begin_mb, begin_tokens), (end_s, end_cpu, end_mb, end_tokens) = generating[0], generating[-1]
    tokens = end_tokens - begin_tokens
    cpus = [end - begin for begin, end in zip(begin_cpu, end_cpu, strict=True)]
    return {
        "server": "octavo",
        "streams": arguments.streams,
        "steps_per_second_asked": arguments.steps_per_second,
        "tokens_per_s": round(tokens / (end_s - begin_s)),
        "cpu_us_per_token": round(1e6 * sum(cpus) / tokens, 2),
        "cpu_share_of_each_process": [round(cpu / (end_s - begin_s), 2) for cpu in cpus],
        **_messages(received),
        "resident_mb": [round(begin_mb, 1), round(end_mb, 1)],
        "seconds": round(end_s - begin_s, 1),
    }


def _messages(received: Sequence[Received]) -> dict[str, Any]:
    return {
        "tokens_per_message": round(sum(map(_num_tokens, received)) / sum(one.messages for one in received), 2),
        "largest_message_tokens": max(one.largest for one in received),
    }


def _num_tokens(received: Received) -> int:
    return len(received.token_ids)


def _check(received: Sequence[Received], num_tokens: int) -> None:
    """Every stream has its tokens, and they are those of consecutive steps."""
    for one in received:
        ids = one.token_ids
        assert len(ids) == one.completion_tokens == num_tokens, (len(ids), one.completion_tokens, num_tokens)
        assert all(after - before in (1, 1 - 32768) for before, after in itertools.pairwise(ids)), "out of order"


def _wait_serving(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(60)
    with Client(f"127.0.0.1:{port}") as client:
        while not client.health(timeout=10):
            time.sleep(0.05)


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--steps-per-second", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connections", type=int, default=10)
    parser.add_argument("--bare", action="store_true", help="measure a server that only sends, in place of Octavo")
    parser.add_argument("--rounds", type=int, default=1, help="of one scheduler, to see whether its memory comes back")
    parser.add_argument("scheduler", nargs="*", help="flags of the scheduler, after --")
    arguments = parser.parse_args()
    machine = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "flags": " ".join(arguments.scheduler),
    }
    _RESULTS.parent.mkdir(parents=True, exist_ok=True)
    runs = [measure_bare(arguments)] if arguments.bare else measure(arguments, arguments.scheduler)
    for figures in runs:
        line = json.dumps(machine | {"load": round(os.getloadavg()[0], 1)} | figures)
        print(line, flush=True)
        with _RESULTS.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
