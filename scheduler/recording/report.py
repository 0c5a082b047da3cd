"""The text report of a what-if replay: runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.core.config import CoreConfig
from scheduler.core.result import EndReason
from scheduler.recording.measures import Measures, percentile
from scheduler.recording.step_model import StepModel

_LIMITS = (
    "num_blocks",
    "num_host_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "policy",
    "preemption_mode",
    "max_plans_in_flight",
)
_PERCENTILES = (50, 95, 99)
_WIDTHS = (30, 14)


@dataclass(frozen=True, slots=True)
class Run:
    """One column of the report."""

    title: str
    config: CoreConfig
    measures: Measures


def model_lines(model: StepModel, overhead_ns: float) -> list[str]:
    """The fitted step-time model and how good it is."""
    constant, decode, prefill, context = model.coefficients
    return [
        f"step time, fitted from {model.num_samples} steps (median error {model.median_error:.1%}):",
        f"  {constant / 1e6:.4g} ms + {decode / 1e3:.4g} us per decode row + {prefill / 1e3:.4g} us per prefill token "
        f"+ {context:.4g} ns per context token, and {overhead_ns / 1e6:.4g} ms outside the worker",
    ]


def run_lines(runs: Sequence[Run]) -> list[str]:
    """Limits and measures of all runs, one column each."""
    lines = [_line("", [run.title for run in runs])]
    lines += [_line(name, [str(getattr(run.config, name)) for run in runs]) for name in _LIMITS]
    lines.append("")
    for name, form in _figures(runs):
        lines.append(_line(name, [form(run.measures) for run in runs]))
    return lines


def _figures(runs: Sequence[Run]) -> list[tuple[str, Callable[[Measures], str]]]:
    figures: list[tuple[str, Callable[[Measures], str]]] = [
        ("steps", lambda measures: str(measures.num_steps)),
        ("duration s", lambda measures: f"{measures.duration_s:.3f}"),
        ("output tokens per s", lambda measures: f"{measures.output_tokens_per_s:.1f}"),
    ]
    for name, column in (("TTFT", "ttft_ns"), ("inter-token", "inter_token_ns"), ("queue time", "queue_ns")):
        figures += [(f"{name} p{percent} ms", _milliseconds(column, percent)) for percent in _PERCENTILES]
    modes = [name for name in runs[0].measures.counters if name.startswith("preemptions")]
    figures += [(name.replace("_", " by "), _counter(name)) for name in modes]
    figures.append(("prefix hit rate", lambda measures: f"{measures.prefix_hit_rate:.1%}"))
    figures.append(("refused sequences", lambda measures: str(measures.refused)))
    reasons = [reason for reason in EndReason if any(run.measures.ends[reason] for run in runs)]
    figures += [(f"ended: {reason.value}", _ended(reason)) for reason in reasons]
    return figures


def _milliseconds(column: str, percent: int) -> Callable[[Measures], str]:
    return lambda measures: f"{percentile(getattr(measures, column), percent) / 1e6:.2f}"


def _counter(name: str) -> Callable[[Measures], str]:
    return lambda measures: str(measures.counters[name])


def _ended(reason: EndReason) -> Callable[[Measures], str]:
    return lambda measures: str(measures.ends[reason])


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<{_WIDTHS[0]}}" + "".join(f"{cell:>{_WIDTHS[1]}}" for cell in cells)
