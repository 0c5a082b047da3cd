"""`python -m bench.scheduler`: microseconds per step for schedule + update, ours and vLLM's, interleaved.

Both contenders wait in processes of their own and take turns case by case, in the other order every round, so that a
slow spell of the machine hits both. The table is in CPU time of the process, which other processes on the machine
disturb little; wall time is in bench/results/scheduler.jsonl beside it. Figures are per step: the median and the best
of all windows of 16 steps of all rounds, for schedule and update; queueing the arrivals of a step, which does not
hold a plan up, stands beside them.

`--python` runs both contenders under another interpreter of the same version: one that was built with profile-guided
optimisation, as distributions' are, takes a fifth less time than one that was not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.contender import Contender
from bench.machine import machine
from bench.scheduler.workload import Case

_PEER = Path(".venv-vllm")
_RESULTS = Path("bench/results/scheduler.jsonl")
_LOGS = Path(".run/bench")
_CASES = [
    Case(load=load, running=running, plans_in_flight=in_flight)
    for load in ("decode", "mixed")
    for running in (16, 256, 1024)
    for in_flight in (2, 1)
]
_NUM_WAITING, _SHORT, _LONG = 10_000, 16, 272
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender at each case (default: 3)")
    parser.add_argument("--python", help="interpreter of both contenders (default: that of each one's environment)")
    args = parser.parse_args()
    rounds = args.rounds
    if not _PEER.exists():
        sys.exit(f"{_PEER} is not there: python -m tools.install_peers vllm")
    packages = next(_PEER.glob("lib/python*/site-packages")).absolute()
    commands = [
        [args.python or sys.executable, "-m", "bench.scheduler.ours"],
        [args.python or str(_PEER / "bin/python"), "-m", "bench.scheduler.peer_vllm"],
    ]
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(packages)}
    with (
        Contender("octavo", commands[0], log=_LOGS / "scheduler-octavo.log") as ours,
        Contender("vllm", commands[1], log=_LOGS / "scheduler-vllm.log", env=env) as peer,
    ):
        contenders = [ours, peer]
        windows: dict[tuple[str, Case], list[Figures]] = {}
        for number in range(rounds):
            for case in _CASES:
                for one in contenders if number % 2 == 0 else contenders[::-1]:
                    windows.setdefault((one.name, case), []).extend(one.ask(case=_fields(case)))
            print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
        memory = {one.name: _waiting_bytes(one) for one in contenders}
        head = machine() | {f"{one.name}_versions": one.hello for one in contenders}
    rows = [_row(case, windows["octavo", case], windows["vllm", case]) for case in _CASES]
    _print(rows, memory)
    _RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with _RESULTS.open("a") as file:
        for row in [*rows, {"load": "waiting", "bytes_per_request": memory}]:
            file.write(json.dumps(head | {"rounds": rounds} | row) + "\n")


def _waiting_bytes(contender: Contender) -> Figures:
    """Bytes per waiting request: a fixed part, and one per prompt token, from two prompt lengths."""
    case = _fields(Case(load="mixed", running=16, plans_in_flight=2))
    short, long = (
        contender.ask(case=case, waiting={"count": _NUM_WAITING, "num_prompt": length}) for length in (_SHORT, _LONG)
    )
    per_token = (long - short) / (_LONG - _SHORT)
    return {"fixed": round(short - per_token * _SHORT), "per_token": round(per_token, 2)}


def _row(case: Case, ours: list[Figures], theirs: list[Figures]) -> dict[str, Any]:
    tokens = [statistics.mean(window["tokens"] for window in windows) for windows in (ours, theirs)]
    if abs(tokens[0] - tokens[1]) > 0.02 * tokens[0]:
        raise RuntimeError(f"{case}: the contenders computed {tokens[0]:.1f} and {tokens[1]:.1f} tokens per step")
    row: dict[str, Any] = _fields(case) | {"tokens_per_step": round(tokens[0], 1)}
    for name, windows in (("octavo", ours), ("vllm", theirs)):
        row[name] = _summary(windows, lambda w: w["schedule_us"] + w["update_us"])
        row[f"{name}_with_add"] = _summary(windows, lambda w: w["add_us"] + w["schedule_us"] + w["update_us"])
        row[f"{name}_wall"] = _summary(windows, lambda w: w["wall_us"])
        for verb in ("add", "schedule", "update"):
            row[f"{name}_{verb}"] = round(statistics.median(window[f"{verb}_us"] for window in windows), 1)
    row["ratio"] = round(row["vllm"]["median_us"] / row["octavo"]["median_us"], 2)
    row["ratio_with_add"] = round(row["vllm_with_add"]["median_us"] / row["octavo_with_add"]["median_us"], 2)
    row["ratio_best"] = round(row["vllm"]["best_us"] / row["octavo"]["best_us"], 2)
    return row


def _summary(windows: list[Figures], figure: Callable[[Figures], float]) -> Figures:
    values = [figure(window) for window in windows]
    return {"median_us": round(statistics.median(values), 1), "best_us": round(min(values), 1)}


def _print(rows: list[dict[str, Any]], memory: dict[str, Figures]) -> None:
    print("CPU microseconds per step for schedule + update: median (best), and median per running sequence; for add")
    head = f"{'load':>6} {'running':>7} {'plans':>5} {'octavo':>17} {'vllm':>19} {'each':>12} {'ratio':>13}"
    print(f"{head} {'add':>9} {'ratio with add':>14}")
    for row in rows:
        ours, theirs = row["octavo"], row["vllm"]
        best = [f"({row[name]['best_us']:.0f})" for name in ("octavo", "vllm")]
        best_ratio = f"({row['ratio_best']:.1f})"
        each = f"{ours['median_us'] / row['running']:.2f}/{theirs['median_us'] / row['running']:.2f}"
        print(
            f"{row['load']:>6} {row['running']:>7} {row['plans_in_flight']:>5} "
            f"{ours['median_us']:>8.0f} {best[0]:>8} "
            f"{theirs['median_us']:>9.0f} {best[1]:>9} "
            f"{each:>12} {row['ratio']:>5.1f} {best_ratio:>7} "
            f"{row['octavo_add']:>4.0f}/{row['vllm_add']:<4.0f} {row['ratio_with_add']:>14.1f}"
        )
    for name, figures in memory.items():
        print(f"{name}: a waiting request takes {figures['fixed']} bytes and {figures['per_token']} per prompt token")


def _fields(case: Case) -> dict[str, Any]:
    return {"load": case.load, "running": case.running, "plans_in_flight": case.plans_in_flight}


if __name__ == "__main__":
    main()
