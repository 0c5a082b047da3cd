"""vLLM's OpenAI server as a contender: everything of it but the model (`vllm_executor.py`).

Needs `.venv-vllm`, made by `tools/install_peers.py`. Its server is as `vllm serve` starts it, with the log of requests
and the statistics off, which is cheaper for it; prompts are token ids as in Octavo's runs, and text comes in chunks
of server-sent events. A block holds 32 tokens there, because its CPU platform wants that. Flags after -- are those of
`vllm serve`: `--stream-interval 10`, for one, lets it send ten tokens at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.fanout.client import Body
from bench.fanout.http1 import CompletionConnection, read_arrivals
from bench.fanout.load import Arrival, Load
from bench.fanout.processes import Processes
from bench.fanout.servers import Server
from bench.machine import free_port

_PYTHON = Path(".venv-vllm/bin/python")
_MODEL = Path(".models/SmolLM2-135M-Instruct-bf16")
_START_S = 240.0


@contextmanager
def vllm(load: Load, num_blocks: int, flags: Sequence[str]) -> Iterator[Server]:
    """The server. Raises RuntimeError if it does not start."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w+") as log, tempfile.NamedTemporaryFile("w+") as pace_log:
        settings = {
            "model": str(_MODEL),
            "steps_per_second": load.steps_per_second,
            "num_blocks": num_blocks,
            "pace_log": pace_log.name,
        }
        server = subprocess.Popen(
            [
                *(str(_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(_MODEL)),
                *("--port", str(port), "--host", "127.0.0.1"),
                *("--distributed-executor-backend", "bench.fanout.vllm_executor.PacedExecutor"),
                *("--max-num-seqs", str(load.streams), "--max-num-batched-tokens", str(max(load.streams, 8192))),
                *("--max-model-len", "8192", "--block-size", "32", "--dtype", "float32", "--enforce-eager"),
                *("--disable-log-stats", "--disable-uvicorn-access-log", *flags),
            ],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([".", os.environ.get("PYTHONPATH", "")]),
                "FANOUT": json.dumps(settings),
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_serving(server, port, Path(log.name))
            processes = Processes(server.pid)
            print("processes:", processes.names(), file=sys.stderr)

            def connect(load: Load, streams: Sequence[int]) -> CompletionConnection:
                (stream,) = streams
                return CompletionConnection(port, load, stream, str(_MODEL))

            def read(body: Body, first_step: int, whole: bool) -> Iterator[Arrival]:
                return read_arrivals(body, _MODEL, whole)

            yield Server(
                name="vllm",
                processes=processes,
                pace_log=Path(pace_log.name),
                connect=connect,
                read=read,
                must_end=False,
            )
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait_serving(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up_s = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
        except (urllib.error.URLError, OSError) as error:
            if server.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError(f"vLLM does not serve: {log.read_text()[-4000:]}") from error
            time.sleep(0.2)
        else:
            return
