"""`python -m bench`: Octavo beside its peers on the same work, in one run on one machine.

All contenders are up at the same time and take turns case by case, in another order every round, so that a slow spell
of the machine hits all of them. A case that has taken a contender long is not repeated. Every run is checked for exact
numbers of tokens, and written to bench/results/serving.jsonl; `python -m bench.report` makes the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from bench import contenders, report
from bench.contender import Contender, ContenderError
from bench.figures import agreement, compute
from bench.machine import busy_seconds, instruction_sets, machine
from bench.prepare import prepare
from bench.workload import THREADS, Case, select, warm_up

RESULTS = Path("bench/results/serving.jsonl")
_BUILD = Path(".run/bench")


def main() -> int:
    args = _arguments()
    begin = time.monotonic()
    try:
        cases = select(args.only)
        specs = _specs(args.peers)
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as file, ExitStack() as stack:
        run = _Run(file, args.rounds, args.case_seconds)
        for spec in specs:
            run.start(spec, stack)
        run.measure(cases)
        run.write(kind="end", took_s=round(time.monotonic() - begin))
    print(report.render(report.read(RESULTS)))
    return 1 if run.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="W2,W4", help="workloads (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender at each case (default: 3)")
    parser.add_argument(
        "--peers", default=None, metavar="vllm,openvino", help="peers (default: all that are installed)"
    )
    parser.add_argument(
        "--case-seconds",
        type=float,
        default=20,
        help="a contender that has spent this long on a case is not given it again (default: 20)",
    )
    return parser.parse_args()


def _specs(names: str | None) -> list[contenders.Spec]:
    model = prepare()
    peers = {spec.name: spec for spec in contenders.peers(model)}
    if names is None:
        chosen = [spec for spec in peers.values() if spec.installed and spec.by_default]
    else:
        wanted = [name for name in names.split(",") if name]
        for name in wanted:
            if name not in peers:
                raise ValueError(f"no peer is named {name!r}; there are {', '.join(peers)}")
            if not peers[name].installed:
                raise ValueError(f"{name} is not installed: make bench-peers")
        chosen = [peers[name] for name in wanted]
    return [*contenders.ours(model), *chosen]


class _Run:
    """One run: its contenders, and the lines that it writes."""

    def __init__(self, file: IO[str], rounds: int, case_seconds: float) -> None:
        self._file = file
        self._rounds = rounds
        self._case_seconds = case_seconds
        self._contenders: list[tuple[contenders.Spec, Contender]] = []
        self._spent: dict[tuple[str, str], float] = {}
        self.failures = 0
        head = machine()
        self._id = head["date"]
        self.write(kind="start", rounds=rounds, instruction_sets=instruction_sets(), **head)

    def write(self, **values: Any) -> None:
        self._file.write(json.dumps({"run": self._id} | values) + "\n")
        self._file.flush()

    def start(self, spec: contenders.Spec, stack: ExitStack) -> None:
        """A contender that cannot run is written down with its reason, and does not take part."""
        begin = time.monotonic()
        _say(f"starting {spec.name}")
        try:
            contender = stack.enter_context(
                Contender(spec.name, spec.command, log=_BUILD / f"{spec.name}.log", env=spec.env)
            )
        except ContenderError as error:
            self._fail(spec.name, None, str(error))
            return
        self.write(kind="contender", contender=spec.name, start_s=round(time.monotonic() - begin, 1), **contender.hello)
        if "refused" in contender.hello:
            _say(f"{spec.name} does not run here: {contender.hello['refused']}")
            return
        self._contenders.append((spec, contender))

    def measure(self, cases: Sequence[Case]) -> None:
        for prefix_caching in sorted({case.prefix_caching for case in cases}):
            for spec, contender in list(self._contenders):
                self._ask(spec, contender, warm_up(prefix_caching=prefix_caching), 0)
        for round_number in range(1, self._rounds + 1):
            self.write(kind="floors", round=round_number, **floors())
            for case in cases:
                self._take_turns(case, round_number)
            _say(f"round {round_number} of {self._rounds} done")

    def _take_turns(self, case: Case, round_number: int) -> None:
        first = round_number % len(self._contenders)
        batches: dict[str, Any] = {}
        answers: dict[str, dict[str, Any]] = {}
        for spec, contender in self._contenders[first:] + self._contenders[:first]:
            if spec.workloads and case.name not in spec.workloads:
                continue
            if self._spent.get((spec.name, case.name), 0) >= self._case_seconds:
                continue
            begin, busy = time.monotonic(), busy_seconds()
            answer = self._ask(spec, contender, case, round_number)
            if answer is None:
                continue
            seconds = time.monotonic() - begin
            own = sum(sum(batch["cpu_s"].values()) for batch in answer)
            self._spent[spec.name, case.name] = self._spent.get((spec.name, case.name), 0) + seconds
            batches[spec.name] = answer
            answers[spec.name] = {
                "figures": compute(case.name, answer),
                "cpu_s": [batch["cpu_s"] for batch in answer],
                "others_cpu_share": round((busy_seconds() - busy - own) / seconds / (os.cpu_count() or 1), 3),
            }
        for name, values in answers.items():
            if contenders.OCTAVO in batches and name != contenders.OCTAVO:
                values["agreement"] = agreement(batches[contenders.OCTAVO], batches[name])
            self.write(kind="result", contender=name, case=case.name, round=round_number, **values)

    def _ask(self, spec: contenders.Spec, contender: Contender, case: Case, round_number: int) -> Any:
        """The batches of a case, or None if that failed; a contender that has ended takes no further part."""
        try:
            answer = contender.ask(case=case.name, round=round_number)
        except ContenderError as error:
            self._contenders.remove((spec, contender))
            answer = {"error": str(error)}
        if "error" in answer:
            self._fail(spec.name, case.name, answer["error"])
            return None
        return answer["batches"]

    def _fail(self, contender: str, case: str | None, why: str) -> None:
        self.failures += 1
        self.write(kind="failure", contender=contender, case=case, why=why)
        _say(f"{contender} failed{f' at {case}' if case else ''}: {why}")


def floors() -> dict[str, Any]:
    """What the machine can do at most right now; `floors.cpp` says how that is measured."""
    program = _BUILD / "floors"
    source = Path("bench/floors.cpp")
    changed = max(path.stat().st_mtime for path in (source, Path("bench/integer_floor.h")))
    if not program.exists() or program.stat().st_mtime < changed:
        program.parent.mkdir(parents=True, exist_ok=True)
        command = ["g++", "-O3", "-march=native", "-fopenmp", "-std=c++17", "-o", str(program), str(source)]
        subprocess.run(command, check=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS)}
    output = subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout
    figures: dict[str, Any] = json.loads(output)
    return figures


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
