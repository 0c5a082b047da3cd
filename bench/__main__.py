"""`python -m bench`: output tokens per second at 1, 8 and 16 streams beside transformers, then the engine's steps.

Contenders take turns within a run, so that a slow spell of the machine hits both; figures are medians over the rounds.
The table goes to standard output, every figure to bench/results/first-light.jsonl.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from bench import octavo_run
from bench.prepare import prepare
from bench.workload import streams
from clients.local.services import Services

_MODELS = Path(".models")
_RESULTS = Path("bench/results/first-light.jsonl")
_SHAPES = [(1, 128, 128), (8, 128, 128), (16, 128, 128)]
_ROUNDS = 3


def main() -> None:
    model = prepare(_MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf", _MODELS / "SmolLM2-135M-Instruct-bf16")
    rows = asyncio.run(_measure(model))
    machine = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    _RESULTS.parent.mkdir(parents=True, exist_ok=True)
    print(f"\n{'streams':>7} {'octavo tok/s':>13} {'transformers':>13} {'ratio':>6} {'TTFT ms':>8} {'ITL ms':>7}")
    with _RESULTS.open("a") as file:
        for row in rows:
            print(
                f"{row['streams']:>7} {row['octavo_tok_s']:>13.0f} {row['transformers_tok_s']:>13.0f} "
                f"{row['ratio']:>6.2f} {row['ttft_ms']:>8.0f} {row['itl_ms']:>7.1f}"
            )
            file.write(json.dumps(machine | row) + "\n")
    subprocess.run([sys.executable, "-m", "bench.scheduler.engine"], check=True)


async def _measure(model: Path) -> list[dict[str, float]]:
    with tempfile.TemporaryFile() as log:
        config = octavo_run.config(model)
        target = config.scheduler.target
        async with Services(config, log) as services:
            await services.start()
            await octavo_run.run(target, streams(2, 16, 8))
            ours: dict[int, list[octavo_run.Timing]] = {count: [] for count, _, _ in _SHAPES}
            theirs: dict[int, list[float]] = {count: [] for count, _, _ in _SHAPES}
            for _ in range(_ROUNDS):
                for count, num_prompt, num_output in _SHAPES:
                    ours[count].append(await octavo_run.run(target, streams(count, num_prompt, num_output)))
                for count, seconds in await _transformers(model):
                    theirs[count].append(seconds)
            await services.drain()
    rows = []
    for count, _, num_output in _SHAPES:
        tokens = count * num_output
        us = statistics.median(timing.seconds for timing in ours[count])
        them = statistics.median(theirs[count])
        rows.append(
            {
                "streams": count,
                "octavo_tok_s": tokens / us,
                "transformers_tok_s": tokens / them,
                "ratio": them / us,
                "ttft_ms": 1e3 * statistics.median(t for timing in ours[count] for t in timing.first_token_s),
                "itl_ms": 1e3 * statistics.median(t for timing in ours[count] for t in timing.inter_token_s),
            }
        )
    return rows


async def _transformers(model: Path) -> list[tuple[int, float]]:
    """One process per round: it has the machine for itself while it runs, and gives its memory back."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.peer_transformers",
        str(model),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate((json.dumps([[1, 16, 4], *_SHAPES]) + "\n").encode())
    if process.returncode != 0:
        raise RuntimeError(f"bench.peer_transformers exited with status {process.returncode}")
    lines = [json.loads(line) for line in output.splitlines()][1:]
    return [(line["streams"], line["seconds"]) for line in lines]


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
