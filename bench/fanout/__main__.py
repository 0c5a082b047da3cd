"""`python -m bench.fanout`: 500 streams of one token in 10 ms each, for a minute.

A worker without a model sets the pace; scheduler, front ends and wire are the real ones. One line of JSON goes to
standard output and to bench/results/fanout.jsonl. All figures are of the steady time, which begins --warm-up seconds
after the first token:

tokens_per_s             delivered, as the client counts them; the pace is streams x steps per second
worker_lag_ms            how late the worker was asked for a step, against a schedule that forgives nothing
delivery_delay_ms        from the time at which a token was due to that at which the client had it
cpu_us_per_token         of all processes of the server, and cpu_share_of_each_process of a core
resident_mb              memory of all of them at the begin and at the end

A lag or delay that is greater in the last ten seconds than in the first is a backlog that grows. The run fails if a
token is lost, doubled or out of order. With --replace N a stream ends after N tokens and the next one takes its place,
so that memory must not grow at all once the prefix cache has filled the pool.

--server vllm drives vLLM's OpenAI server in the same way, its engine and scheduler real and its executor without a
model: see `peer_vllm.py`, which needs .venv-vllm. --server bare is the least that gRPC's Python server can do.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.fanout.client import run
from bench.fanout.figures import figures
from bench.fanout.load import Arrival, Load
from bench.fanout.pace import read_schedule
from bench.fanout.servers import Server, bare, octavo
from bench.machine import machine

_RESULTS = Path("bench/results/fanout.jsonl")
# What a server that falls behind gets to end what it has begun.
_LATE_S = 60.0


def measure(server: Server, load: Load, num_connections: int) -> dict[str, Any]:
    """One run of all streams."""
    with server.processes.watch() as samples:
        begin_s = time.monotonic()
        connections = [
            server.connect(load, range(place, load.streams, num_connections)) for place in range(num_connections)
        ]
        try:
            until_s = begin_s + load.whole_s
            limit_s = until_s + _LATE_S if server.must_end else until_s
            run(connections, until_s, limit_s, replace=load.replace > 0)
            if server.must_end and any(connection.num_open for connection in connections):
                raise TimeoutError(f"{sum(connection.num_open for connection in connections)} calls have not ended")
        finally:
            for connection in connections:
                connection.close()
    schedule = None if server.pace_log is None else read_schedule(server.pace_log)
    first_step = 0 if schedule is None else schedule.step
    arrivals: list[Arrival] = []
    num_requests = 0
    for connection in connections:
        for body in connection.bodies:
            arrivals += server.read(body, first_step, server.must_end)
            num_requests += 1
    return {
        "server": server.name,
        "streams": load.streams,
        "steps_per_second_asked": load.steps_per_second,
        "tokens_per_request": load.replace or load.num_tokens(0, 0),
        "requests": num_requests,
        **figures(load, arrivals, samples, schedule),
    }


def _server(arguments: argparse.Namespace, load: Load) -> AbstractContextManager[Server]:
    if arguments.server == "bare":
        return bare(load)
    if arguments.server == "vllm":
        from bench.fanout.peer_vllm import vllm

        return vllm(load, arguments.num_blocks, arguments.flags)
    return octavo(load, arguments.num_blocks, arguments.flags)


def _runs(arguments: argparse.Namespace, load: Load) -> Iterator[dict[str, Any]]:
    num_connections = load.streams if arguments.server == "vllm" else arguments.connections
    with _server(arguments, load) as server:
        for _ in range(arguments.rounds):
            yield measure(server, load, num_connections)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("octavo", "bare", "vllm"), default="octavo")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--steps-per-second", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=60, help="of steady time")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds before it")
    parser.add_argument("--replace", type=int, default=0, metavar="N", help="end streams after N tokens, begin others")
    parser.add_argument("--connections", type=int, default=10, help="that share the streams; vLLM's have one each")
    parser.add_argument("--num-blocks", type=int, default=1 << 18, help="in the worker's pool")
    parser.add_argument("--rounds", type=int, default=1, help="of one server, to see whether its memory comes back")
    parser.add_argument("flags", nargs="*", help="of the server, after --")
    return parser.parse_args()


def main() -> int:
    arguments = _parse()
    load = Load(
        streams=arguments.streams,
        steps_per_second=arguments.steps_per_second,
        seconds=arguments.seconds,
        warm_up_s=arguments.warm_up,
        replace=arguments.replace,
    )
    setting = {"python": platform.python_version(), "flags": " ".join(arguments.flags)}
    _RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for found in _runs(arguments, load):
        line = json.dumps(machine() | setting | found)
        print(line, flush=True)
        with _RESULTS.open("a") as file:
            file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
