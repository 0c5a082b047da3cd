"""From the answers of a contender to the figures of the table, and what is aimed at. Standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.workload import CASES

Batches = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A row of the table.

    key: in the results. target: what the ratio to the best peer is to reach, at least if higher is better, else at
    most; None: nothing is aimed at.
    """

    case: str
    key: str
    title: str
    higher_is_better: bool
    target: float | None

    def best(self, values: Sequence[float]) -> float:
        """The best of several."""
        return max(values) if self.higher_is_better else min(values)

    def meets(self, ratio: float) -> bool:
        """Whether a ratio to the best peer is what is aimed at."""
        return self.target is None or (ratio >= self.target if self.higher_is_better else ratio <= self.target)


def _rate(case: str, title: str, target: float) -> Figure:
    return Figure(case=case, key="tok_s", title=title, higher_is_better=True, target=target)


def _time(case: str, key: str, title: str, target: float | None) -> Figure:
    return Figure(case=case, key=key, title=title, higher_is_better=False, target=target)


FIGURES = (
    _rate("W1", "output tokens/s", 1.6),
    _time("W2", "itl_ms", "ms between tokens", 0.65),
    _time("W2", "ttft_ms", "ms to the first token", 1.0),
    _time("W3-on", "seconds", "seconds", 0.6),
    _time("W3-off", "seconds", "seconds", 0.9),
    _rate("W4@8", "decode tokens/s", 2.0),
    _rate("W4@16", "decode tokens/s", 2.0),
    _rate("W4@32", "decode tokens/s", 2.0),
    _time("W5", "itl_ms", "ms between tokens", None),
    _time("W5", "ttft_ms", "ms to the first token", None),
)


def compute(case: str, batches: Batches) -> dict[str, float]:
    """The figures of one run of a case, by key; those that an engine gives no times for are left out.

    tok_s: tokens over seconds; of two batches, the first with one token of output each, those of the difference, which
    is a decode rate. rate_tokens, rate_s: these tokens and seconds. cpu_s_NAME: a process' CPU time in these seconds.
    """
    tokens = _difference([sum(map(len, batch["token_ids"])) for batch in batches])
    seconds = _difference([batch["seconds"] for batch in batches])
    figures = {"seconds": batches[-1]["seconds"], "tok_s": tokens / seconds, "rate_tokens": tokens, "rate_s": seconds}
    for name in batches[-1].get("cpu_s", ()):
        figures[f"cpu_s_{name}"] = _difference([batch["cpu_s"][name] for batch in batches])
    for key in ("ttft", "itl"):
        if times := batches[-1][f"{key}_s"]:
            figures[f"{key}_ms"] = 1e3 * statistics.median(times)
    return figures


def without_client(figures: Mapping[str, float], cores: int) -> float | None:
    """Tokens per second if the client had its own processor: its CPU time, spread over all cores, is what the others
    did not get. None where its CPU time is not known."""
    if "cpu_s_client" not in figures:
        return None
    return figures["rate_tokens"] / (figures["rate_s"] - figures["cpu_s_client"] / cores)


def _difference(values: Sequence[float]) -> float:
    """Of the last batch, less the first one's if there are two."""
    return values[-1] - values[0] if len(values) == 2 else values[-1]


def agreement(ours: Batches, theirs: Batches) -> dict[str, float]:
    """How far two contenders' greedy tokens go together in the last batch of a case, from 0 to 1.

    first: requests whose first tokens are equal. prefix: of all tokens, those before the first difference in a request.
    Equal weights in other arithmetic differ where two logits are nearly equal, and after that in all that follows.
    """
    pairs = list(zip(ours[-1]["token_ids"], theirs[-1]["token_ids"], strict=True))
    common = [_common(one, other) for one, other in pairs]
    return {
        "first": sum(length > 0 for length in common) / len(common),
        "prefix": sum(common) / sum(len(one) for one, _ in pairs),
    }


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def title(case: str) -> str:
    """The workload in words."""
    return CASES[case].title
