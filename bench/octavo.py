"""Octavo as its users meet it: a scheduler and a worker process, gRPC, and the Python client in this process.

`python -m bench.octavo MODEL_DIR` serves the commands of `measure.serve`. One request is streamed, as its latency is
what is measured; of several only the whole answers are asked for. With `--streamed` the tokens of these, too, are sent
as they come.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from bench.measure import Outcome, serve
from bench.workload import KV_CACHE_TOKENS, MAX_NUM_SEQS, THREADS, Request
from clients import AsyncClient
from clients.local import preflight
from clients.local.address import LOOPBACK
from clients.local.services import Services, ServicesConfig
from clients.request import RequestKeywords

T = TypeVar("T")
_BLOCK_SIZE = 16


class Octavo:
    """Two pairs of services, with a prefix cache and without one; each starts when it is first needed."""

    def __init__(self, model: str, *, streamed: bool) -> None:
        self._model = model
        self._streamed = streamed
        messages = "streamed" if streamed else "whole answers, or streamed for one request"
        self.settings: Mapping[str, Any] = {
            "threads": THREADS,
            "dtype": "bfloat16",
            "transport": f"gRPC over loopback, no event engine, {messages}, to a Python client on the same cores",
        }
        self._runner = asyncio.Runner()
        self._pairs: dict[bool, tuple[AsyncClient, dict[str, int]]] = {}
        self.use(prefix_caching=True)

    @property
    def processes(self) -> Mapping[str, int]:
        """Of the pair in use."""
        return {"client": os.getpid()} | self._services

    def use(self, *, prefix_caching: bool) -> None:
        if prefix_caching not in self._pairs:
            self._pairs[prefix_caching] = self._do(self._start(prefix_caching))
        self._client, self._services = self._pairs[prefix_caching]

    def run(self, requests: Sequence[Request]) -> Outcome:
        if self._streamed or len(requests) == 1:
            return self._do(_stream(self._client, requests))
        return self._do(_complete(self._client, requests))

    async def _start(self, prefix_caching: bool) -> tuple[AsyncClient, dict[str, int]]:
        config = ServicesConfig(
            scheduler=preflight.free_address(LOOPBACK),
            worker=preflight.free_address(LOOPBACK),
            scheduler_arguments=(
                f"--model={self._model}",
                f"--max-num-seqs={MAX_NUM_SEQS}",
                "--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching",
            ),
            worker_arguments=(
                f"--model={self._model}",
                "--dtype=bfloat16",
                f"--threads={THREADS}",
                f"--num-gpu-blocks-override={KV_CACHE_TOKENS // _BLOCK_SIZE}",
                "--swap-space=0",
            ),
        )
        before = _children()
        await Services(config).start()  # they die with this process
        started = {name: pid for pid, name in _children().items() if pid not in before}
        return AsyncClient(config.scheduler.target), started

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)


async def _complete(client: AsyncClient, requests: Sequence[Request]) -> Outcome:
    """Sends all requests at once and waits for their answers."""
    begin = time.perf_counter()
    answers = await asyncio.gather(*(client.complete(**_keywords(request)) for request in requests))
    seconds = time.perf_counter() - begin
    return Outcome(
        seconds=seconds,
        token_ids=[list(answer.token_ids) for answer in answers],
        num_prompt=[answer.usage.prompt_tokens if answer.usage else 0 for answer in answers],
    )


async def _stream(client: AsyncClient, requests: Sequence[Request]) -> Outcome:
    """Sends all requests at once and reads them as they come to their ends."""
    begin = time.perf_counter()
    parts = await asyncio.gather(*(_one(client, request, begin) for request in requests))
    seconds = time.perf_counter() - begin
    ids, times, prompts = (list(column) for column in zip(*parts, strict=True))
    return Outcome(seconds=seconds, token_ids=ids, token_s=times, num_prompt=prompts)


async def _one(client: AsyncClient, request: Request, begin: float) -> tuple[list[int], list[float], int]:
    ids: list[int] = []
    times: list[float] = []
    async with client.generate(**_keywords(request)) as stream:
        async for delta in stream:
            ids += delta.token_ids
            times += [time.perf_counter() - begin] * len(delta.token_ids)
    assert stream.usage is not None
    return ids, times, stream.usage.prompt_tokens


def _keywords(request: Request) -> RequestKeywords:
    return {
        "token_ids": request.prompt,
        "max_tokens": request.num_output,
        "temperature": 0,
        "ignore_eos": True,
    }


def _children() -> dict[int, str]:
    """Child processes of this one: id -> the module that each runs."""
    children = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            arguments = (path / "cmdline").read_text().split("\0")
        except OSError:  # it has ended
            continue
        if parent == os.getpid() and "-m" in arguments:
            children[int(path.name)] = arguments[arguments.index("-m") + 1]
    return children


if __name__ == "__main__":
    streamed = "--streamed" in sys.argv
    serve(
        lambda: Octavo(sys.argv[1], streamed=streamed), {name: version(name) for name in ("octavo", "grpcio", "torch")}
    )
