"""`python -m bench.fanout`: 500 streams of one token in 10 ms each, for a minute.

A fake worker sets the pace; scheduler, front ends and wire are the real ones. One line of JSON per configuration goes
to standard output and to bench/results/fanout.jsonl: delivered tokens per second, CPU of the scheduler's processes per
delivered token, tokens per message, how far the steps fell behind the pace, and memory at the start and the end of the
steady time. Fails if a token is lost, doubled or out of order.
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
from collections.abc import Sequence
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


def measure(arguments: argparse.Namespace, scheduler_args: Sequence[str]) -> dict[str, Any]:
    """One run of all streams."""
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
            return _deliver(arguments, port, Processes(scheduler.pid))
        finally:
            for process in filter(None, (scheduler, worker)):
                process.kill()
                process.wait()
            sys.stderr.write(Path(log.name).read_text())


def _deliver(arguments: argparse.Namespace, port: int, processes: Processes) -> dict[str, Any]:
    num_tokens = int(arguments.seconds * arguments.steps_per_second)
    asked = sampling_pb2.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    requests = [
        generation_pb2.GenerateRequest(token_ids=generation_pb2.TokenIds(ids=[1 + index]), sampling_params=asked)
        for index in range(arguments.streams)
    ]
    share = arguments.connections
    samples: list[tuple[float, list[float], float, int]] = []
    stop = threading.Event()

    def sample() -> None:
        with Client(f"127.0.0.1:{port}") as client:
            while not stop.wait(1):
                generated = client.stats(timeout=30).counters.generated_tokens
                samples.append((time.monotonic(), processes.cpu_s(), processes.resident_mb(), generated))

    watching = threading.Thread(target=sample)
    watching.start()
    connections = [Connection(port, requests[place::share]) for place in range(share)]
    try:
        run(connections, 20 * arguments.seconds + 60)
    finally:
        stop.set()
        watching.join()
    received = [one for connection in connections for one in connection.received()]
    _check(received, num_tokens)
    steady = samples[len(samples) // 10 + 1 : -max(1, len(samples) // 10)]
    (begin_s, begin_cpu, begin_mb, begin_tokens), (end_s, end_cpu, end_mb, end_tokens) = steady[0], steady[-1]
    tokens = end_tokens - begin_tokens
    cpus = [end - begin for begin, end in zip(begin_cpu, end_cpu, strict=True)]
    return {
        "streams": arguments.streams,
        "steps_per_second_asked": arguments.steps_per_second,
        "tokens_per_s": round(tokens / (end_s - begin_s)),
        "cpu_us_per_token": round(1e6 * sum(cpus) / tokens, 2),
        "cpu_share_of_each_process": [round(cpu / (end_s - begin_s), 2) for cpu in cpus],
        "tokens_per_message": round(sum(map(_num_tokens, received)) / sum(one.messages for one in received), 2),
        "largest_message_tokens": max(one.largest for one in received),
        "resident_mb": [round(begin_mb, 1), round(end_mb, 1)],
        "seconds": round(end_s - begin_s, 1),
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
    parser.add_argument("scheduler", nargs="*", help="flags of the scheduler, after --")
    arguments = parser.parse_args()
    figures = measure(arguments, arguments.scheduler)
    line = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "flags": " ".join(arguments.scheduler),
        **figures,
    }
    print(json.dumps(line), flush=True)
    _RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with _RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
