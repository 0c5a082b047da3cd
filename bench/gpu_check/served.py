"""The whole path: a scheduler and a worker as processes of their own, a client over gRPC, the same random model."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from bench.gpu_check.llama import write_files
from bench.gpu_check.requests import prompts
from bench.gpu_check.setting import Setting
from bench.gpu_check.sizes import Sizes


def run(setting: Setting) -> None:
    """The part."""
    with tempfile.TemporaryDirectory() as directory:
        write_files(Path(directory), setting.sizes)
        asyncio.run(_measure(setting, Path(directory)))


async def _measure(setting: Setting, model: Path) -> None:
    from clients import AsyncClient
    from clients.local import preflight
    from clients.local.address import LOOPBACK
    from clients.local.services import Services, ServicesConfig

    sizes = setting.sizes
    # On a GPU the worker sizes its KV cache itself, by the profiling run that a deployment has.
    blocks = 2 * max(sizes.streams) * (sizes.prompt + sizes.output) // sizes.block_size
    sized = () if setting.device.type == "cuda" else (f"--num-gpu-blocks-override={blocks}",)
    shared = (
        f"--model={model}",
        f"--max-num-seqs={max(sizes.streams)}",
        f"--max-num-batched-tokens={sizes.budget}",
    )
    config = ServicesConfig(
        scheduler=preflight.free_address(LOOPBACK),
        worker=preflight.free_address(LOOPBACK),
        scheduler_arguments=(*shared, "--no-enable-prefix-caching"),
        worker_arguments=(
            *shared,
            "--load-format=dummy",
            f"--dtype={sizes.dtype}",
            "--backend=triton",
            f"--device={setting.device.type}",
            f"--block-size={sizes.block_size}",
            "--swap-space=0",
            *sized,
        ),
    )
    with tempfile.TemporaryFile() as log:
        try:
            async with Services(config, log) as services:
                await services.start()
                async with AsyncClient(config.scheduler.target) as client:
                    for streams in sizes.streams:
                        await _generate(client, sizes, streams, sizes.output)  # warms up
                        _add(setting, streams, await _generate(client, sizes, streams, sizes.output))
                await services.drain()
        except Exception as error:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(f"{error}; its services' last words: {' | '.join(lines[-3:])}") from error


async def _generate(client: object, sizes: Sizes, streams: int, num_output: int) -> list[list[float]]:
    """Sends all requests at once. -> the arrival of each token of each."""
    start = time.perf_counter()

    async def one(prompt: list[int]) -> list[float]:
        arrivals: list[float] = []
        async with client.generate(  # type: ignore[attr-defined]
            token_ids=prompt, max_tokens=num_output, temperature=0, ignore_eos=True
        ) as stream:
            async for delta in stream:
                arrivals += [time.perf_counter() - start] * len(delta.token_ids)
        return arrivals

    return await asyncio.gather(*(one(prompt) for prompt in prompts(sizes, streams)))


def _add(setting: Setting, streams: int, arrivals: list[list[float]]) -> None:
    sizes = setting.sizes
    name = sizes.requests(streams)
    between = [(times[-1] - times[0]) / (len(times) - 1) for times in arrivals]
    setting.rows.add(f"{name}: first token", 1e3 * statistics.median(times[0] for times in arrivals), "ms")
    setting.rows.add(f"{name}: between tokens", 1e3 * statistics.median(between), "ms")
    total = sum(len(times) for times in arrivals)
    setting.rows.add(f"{name}: all", total / max(times[-1] for times in arrivals), "tokens/s")
