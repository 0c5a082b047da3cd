"""The report's runs as a picture. The only module that needs more than the standard library: matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scheduler.recording.errors import RecordingError
from scheduler.recording.report import Run


def check_installed() -> None:
    """Raises RecordingError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise RecordingError("--plot needs matplotlib: pip install '.[plot]' in Octavo's checkout")


def plot(runs: Sequence[Run], path: Path) -> None:
    """Draws KV cache usage, queue lengths and the distribution of TTFT. The suffix of `path` decides the format.

    Raises RecordingError if the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 10), layout="constrained")
    usage, queues, ttft = figure.subplots(3, 1)
    for color, run in enumerate(runs):
        style: dict[str, Any] = {"color": f"C{color}", "linewidth": 1.2, "where": "post"}
        samples = run.measures.timeline.samples
        seconds = [sample.seconds for sample in samples]
        usage.step(seconds, [100 * sample.usage for sample in samples], label=run.title, **style)
        queues.step(seconds, [sample.running for sample in samples], label=f"{run.title}, running", **style)
        waiting = [sample.waiting for sample in samples]
        queues.step(seconds, waiting, linestyle=":", label=f"{run.title}, waiting", **style)
        times = sorted(ns / 1e6 for ns in run.measures.ttft_ns)
        ttft.step(times, [100 * (rank + 1) / len(times) for rank in range(len(times))], label=run.title, **style)
    for axes, title, x, y in (
        (usage, "KV cache usage", "s since the first arrival", "% of blocks in use"),
        (queues, "Running and waiting", "s since the first arrival", "sequences"),
        (ttft, "Time to first token", "ms", "% of sequences"),
    ):
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise RecordingError(f"--plot {path}: {error}") from error
