"""`python -m bench.report [RUN]`: a run of bench/results/serving.jsonl, by default the newest, as Markdown tables."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.figures import FIGURES, Figure, title, without_client

_RESULTS = Path("bench/results/serving.jsonl")
_OCTAVO, _OCTAVO_STREAMED, _WORKER_ALONE = "octavo", "octavo-streamed", "worker-alone"
_WEIGHT_BYTES = 269_030_016  # what a decode step reads: all weights in bf16, the tied embeddings once
_MAX_OVER_FLOOR = 1.25
_MIN_OF_WORKER = 0.9

Line = dict[str, Any]


def read(path: Path, run: str | None = None) -> list[Line]:
    """The lines of a run, the newest by default. Raises ValueError if there is none."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    wanted = run or (lines[-1]["run"] if lines else None)
    chosen = [line for line in lines if line["run"] == wanted]
    if not chosen:
        raise ValueError(f"{path} has no run {run}" if run else f"{path} has no runs")
    return chosen


def render(lines: Sequence[Line]) -> str:
    """All tables of a run."""
    run = _Run(lines)
    parts = [run.heading(), run.comparison(), run.floors(), run.services(), run.agreement(), run.contenders()]
    return "\n\n".join(part for part in parts if part)


class _Run:
    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._start = next(self._of("start"))
        self._results = list(self._of("result"))
        self._who = {line["contender"]: line for line in self._of("contender")}
        self._peers = [name for name in self._who if name not in (_OCTAVO, _OCTAVO_STREAMED, _WORKER_ALONE)]

    def heading(self) -> str:
        start = self._start
        extensions = ", ".join(start["instruction_sets"])
        end = next(self._of("end"), None)
        took = f"; {end['took_s'] / 60:.0f} minutes in all" if end else "; not finished"
        others = statistics.median(line["others_cpu_share"] for line in self._results) if self._results else 0
        return (
            f"{start['date']}, revision {start['octavo_commit']}, "
            f"{start['cpu']} ({start['cores']} cores; {extensions}). "
            f"SmolLM2-135M, bf16 weights, greedy, exact lengths. {start['rounds']} rounds{took}. "
            f"Other processes took {others:.0%} of the CPUs (median)."
        )

    def comparison(self) -> str:
        """Octavo beside each peer: median (best of all rounds)."""
        peers = [name for name in self._peers if any(line["contender"] == name for line in self._results)]
        rows = []
        for figure in FIGURES:
            ours = self._values(_OCTAVO, figure.case, figure.key)
            theirs = {name: self._values(name, figure.case, figure.key) for name in peers}
            if ours or any(theirs.values()):
                rows.append(_comparison_row(figure, ours, theirs))
        head = ["workload", "figure", "Octavo", *peers, "runs", "best peer", "ratio", "target", "met"]
        return "Medians, and the best in brackets.\n\n" + _table(head, rows) if rows else ""

    def floors(self) -> str:
        """The time between one stream's tokens against the time that reading the weights takes."""
        lines = list(self._of("floors"))
        if not lines:
            return ""
        read = statistics.median(line["read_gb_s"][0] for line in lines)
        best = max(line["read_gb_s"][1] for line in lines)
        fma = max(line["fma_gflop_s"] for line in lines)
        dot = max(line["dot_bf16_gflop_s"] for line in lines)
        text = (
            f"Floors on {lines[0]['threads']} threads: reads {read:.1f} GB/s in the median, {best:.1f} at best; "
            f"fp32 multiply-add {fma:.0f} GFLOP/s"
        )
        integer = max(line.get("integer_gop_s", 0) for line in lines)  # runs of before it was measured lack it
        text += f"; bf16 dot product {dot:.0f} GFLOP/s" if dot else "; no bf16 dot product"
        text += f"; products of 16-bit integers {integer:.0f} GOP/s." if integer else "."
        itl = self._values(_OCTAVO, "W2", "itl_ms")
        if itl:
            floor = _WEIGHT_BYTES / read / 1e6
            over = statistics.median(itl) / floor
            text += (
                f" Reading {_WEIGHT_BYTES / 1e6:.0f} MB of weights takes {floor:.1f} ms; W2's time between tokens is "
                f"{over:.2f} times that ({_WEIGHT_BYTES / best / 1e6:.1f} ms and "
                f"{min(itl) * best * 1e6 / _WEIGHT_BYTES:.2f} times, best against best); aimed at: "
                f"{_MAX_OVER_FLOOR} or less."
            )
        return text

    def services(self) -> str:
        """What scheduler, gRPC and client cost: rates through them against the worker alone, with the client and as if
        it had run elsewhere, and everybody's CPU time per token. Whole answers first, then token by token."""
        cases = [figure.case for figure in FIGURES if figure.key == "tok_s"]
        rows = [self._service_row(_OCTAVO, case, case) for case in cases]
        rows += [self._service_row(_OCTAVO_STREAMED, case, f"{case}, streamed") for case in cases]
        rows = [row for row in rows if row]
        head = ["workload", "through gRPC, tokens/s", "worker alone", "share", "client apart", "target"]
        head += ["CPU us per token: worker alone", "worker", "scheduler", "client"]
        return _table(head, rows) if rows else ""

    def _service_row(self, contender: str, case: str, name: str) -> list[str]:
        """Empty where one of the two did not run."""
        through, alone = (self._values(who, case, "tok_s") for who in (contender, _WORKER_ALONE))
        if not through or not alone:
            return []
        shares = [
            f"{statistics.median(rates) / statistics.median(alone):.0%}" if rates else "–"
            for rates in (through, self._without_client(contender, case))
        ]
        return [
            name,
            *map(_median_and_best_high, (through, alone)),
            *shares,
            f"{_MIN_OF_WORKER:.0%}",
            self._cpu_us_per_token(_WORKER_ALONE, case, "worker"),
            *(self._cpu_us_per_token(contender, case, process) for process in ("worker", "scheduler", "client")),
        ]

    def _without_client(self, contender: str, case: str) -> list[float]:
        rates = (without_client(line["figures"], self._start["cores"]) for line in self._runs(contender, case))
        return [rate for rate in rates if rate is not None]

    def _cpu_us_per_token(self, contender: str, case: str, process: str) -> str:
        key = f"cpu_s_{process}"
        runs = [line["figures"] for line in self._runs(contender, case)]
        values = [1e6 * figures[key] / figures["rate_tokens"] for figures in runs if key in figures]
        return f"{statistics.median(values):.0f}" if values else "–"

    def agreement(self) -> str:
        """How far other engines' greedy tokens go together with Octavo's."""
        rows = []
        for name in self._who:
            values = [line["agreement"] for line in self._results if line["contender"] == name and "agreement" in line]
            if values:
                first, prefix = (statistics.mean(value[key] for value in values) for key in ("first", "prefix"))
                rows.append([name, f"{first:.0%}", f"{prefix:.0%}"])
        head = ["greedy tokens equal to Octavo's", "first token", "tokens before the first difference"]
        return _table(head, rows) if rows else ""

    def contenders(self) -> str:
        """Versions and settings; who could not run, and why."""
        lines = []
        for name, hello in self._who.items():
            versions = ", ".join(f"{package} {version}" for package, version in hello["versions"].items())
            if "refused" in hello:
                lines.append(f"- {name} ({versions}) does not run on this machine: {hello['refused']}")
            else:
                settings = ", ".join(f"{key} {value}" for key, value in hello["settings"].items())
                lines.append(f"- {name} ({versions}): {settings}")
        for failure in self._of("failure"):
            where = f" at {failure['case']}" if failure["case"] else ""
            lines.append(f"- {failure['contender']} FAILED{where}: {failure['why'].splitlines()[0]}")
        return "\n".join(lines)

    def _of(self, kind: str) -> Iterable[Line]:
        return (line for line in self._lines if line["kind"] == kind)

    def _values(self, contender: str, case: str, key: str) -> list[float]:
        return [line["figures"][key] for line in self._runs(contender, case) if key in line["figures"]]

    def _runs(self, contender: str, case: str) -> list[Line]:
        return [line for line in self._results if line["contender"] == contender and line["case"] == case]


def _comparison_row(figure: Figure, ours: Sequence[float], theirs: dict[str, list[float]]) -> list[str]:
    cells = [_median_and_best(figure, values) for values in (ours, *theirs.values())]
    runs = "/".join(str(len(values)) for values in (ours, *theirs.values()))
    medians = {name: statistics.median(values) for name, values in theirs.items() if values}
    best, ratio, target, met = "", "", "", ""
    if ours and medians:
        best = next(name for name, value in medians.items() if value == figure.best(list(medians.values())))
        exact = statistics.median(ours) / medians[best]
        ratio = f"{exact:.2f}"
        if figure.target is not None:
            target = f"{'at least' if figure.higher_is_better else 'at most'} {figure.target:g}"
            met = "yes" if figure.meets(exact) else "no"
    return [f"{figure.case}: {title(figure.case)}", figure.title, *cells, runs, best, ratio, target, met]


def _median_and_best(figure: Figure, values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{_number(statistics.median(values))} ({_number(figure.best(values))})"


def _median_and_best_high(values: Sequence[float]) -> str:
    return f"{_number(statistics.median(values))} ({_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    try:
        print(render(read(_RESULTS, *sys.argv[1:2])))
    except ValueError as error:
        sys.exit(f"bench.report: {error}")
