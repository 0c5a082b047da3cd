"""Octavo on the workloads, through its real gRPC path, client included: a scheduler and a worker process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.workload import Request
from clients import AsyncClient
from clients.local import preflight
from clients.local.address import LOOPBACK
from clients.local.services import ServicesConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds from sending all requests to the last token; to each request's first token; between its tokens, mean."""

    seconds: float
    first_token_s: tuple[float, ...]
    inter_token_s: tuple[float, ...]


def config(model: Path) -> ServicesConfig:
    """Both services on free ports, prefix caching off so that repeated runs do equal work."""
    return ServicesConfig(
        scheduler=preflight.free_address(LOOPBACK),
        worker=preflight.free_address(LOOPBACK),
        scheduler_arguments=(f"--model={model}", "--no-enable-prefix-caching"),
        worker_arguments=(f"--model={model}", "--dtype=bfloat16", "--threads=2"),
    )


async def run(target: str, requests: Sequence[Request]) -> Timing:
    """Sends all requests at once and reads them to their ends."""
    async with AsyncClient(target) as client:
        begin = time.perf_counter()
        times = await asyncio.gather(*(_one(client, request) for request in requests))
    return Timing(
        seconds=max(arrivals[-1] for arrivals in times) - begin,
        first_token_s=tuple(arrivals[0] - begin for arrivals in times),
        inter_token_s=tuple((arrivals[-1] - arrivals[0]) / max(len(arrivals) - 1, 1) for arrivals in times),
    )


async def _one(client: AsyncClient, request: Request) -> list[float]:
    arrivals: list[float] = []
    async with client.generate(
        token_ids=request.prompt, max_tokens=request.num_output, temperature=0, ignore_eos=True
    ) as stream:
        async for delta in stream:
            arrivals += [time.perf_counter()] * len(delta.token_ids)
    assert len(arrivals) == request.num_output
    return arrivals
