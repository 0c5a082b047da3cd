"""`python -m scheduler.recording`, which `octavo replay` runs.

Exit codes: 0 all plans are equal, or the what-if report is printed; 1 a plan differs, or the recording cannot be read;
2 wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scheduler.core.config import CoreConfig
from scheduler.recording import plot, report
from scheduler.recording.errors import RecordingError
from scheduler.recording.measures import Measures
from scheduler.recording.reader import Recording
from scheduler.recording.replay import Verdict, replay
from scheduler.recording.simulation import Simulation
from scheduler.recording.step_model import fit
from scheduler.recording.workload import Workload

_PROG = "octavo replay"


def parser() -> argparse.ArgumentParser:
    """Every flag; those of limits are stored under the name of the field that they replace."""
    parser = argparse.ArgumentParser(
        prog=_PROG,
        description="Run the scheduler core over a recording (scheduler flag --record) and compare every plan. With "
        "any of the limits below: simulate what would have happened, with step times fitted from the recording.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="first segment of the recording; FILE.1 ... are found")
    limits = parser.add_argument_group("what if (limits that are not given are the recorded ones)")

    def limit(flag: str, field: str, meaning: str, **options: Any) -> None:
        limits.add_argument(flag, dest=field, help=meaning, default=argparse.SUPPRESS, **options)

    limit("--blocks", "num_blocks", "KV cache blocks on the worker", type=int, metavar="N")
    limit("--host-blocks", "num_host_blocks", "blocks of the host pool", type=int, metavar="N")
    limit("--max-num-seqs", "max_num_seqs", "sequences that run at once", type=int, metavar="N")
    limit("--max-num-batched-tokens", "max_num_batched_tokens", "tokens computed per step", type=int, metavar="N")
    limit("--policy", "policy", "order of service", choices=["priority", "fcfs"])
    limit("--preemption-mode", "preemption_mode", "what preemption does", choices=["auto", "recompute", "swap"])
    limit("--plans", "max_plans_in_flight", "plans sent ahead of their results", type=int, choices=[1, 2, 4])
    limits.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the runs (needs the extra `plot`)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command; expected failures are one line on standard error."""
    given = vars(parser().parse_args(arguments))
    path, picture = given.pop("file"), given.pop("plot")
    try:
        recording = Recording(path)
        if not given and picture is None:
            return _compare(recording)
        return _what_if(recording, given, picture)
    except RecordingError as error:
        print(f"{_PROG}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output went away. Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _compare(recording: Recording) -> int:
    verdict = replay(recording)
    _print_notes(recording)
    if verdict.difference is not None:
        print("\n".join(verdict.difference.lines()))
        return 1
    print(f"{_extent(verdict)}, all plans equal")
    return 0


def _what_if(recording: Recording, overrides: dict[str, Any], picture: Path | None) -> int:
    if picture is not None:
        plot.check_installed()
    recorded_config = recording.header.config
    try:
        config = what_if_config(recorded_config, overrides)
    except ValueError as error:
        print(f"{_PROG}: {error}", file=sys.stderr)
        return 2
    workload, recorded = Workload(), Measures()

    def observe(*call: Any) -> None:
        workload.observe(*call)
        recorded.observe(*call)

    verdict = replay(recording, observe)
    _print_notes(recording)
    if verdict.difference is not None:
        print("\n".join(verdict.difference.lines()))
        print(
            f"{_PROG}: this core does not replay the recording, so it cannot say what would have happened",
            file=sys.stderr,
        )
        return 1
    try:
        model = fit(workload.samples)
    except ValueError as error:
        raise RecordingError(f"{recording.paths[0]}: {error}") from error
    runs = [report.Run("recorded", recorded_config, recorded)]
    # The recorded limits are simulated, too: how far that is from the recording is how far the answer may be off.
    for title, limits in (("same limits", recorded_config), ("what if", config)):
        measures = Measures()
        Simulation(workload, limits, model, measures.observe).run()
        runs.append(report.Run(title, limits, measures))
    print(f"{_extent(verdict)}")
    print("\n".join([*report.model_lines(model, workload.overhead_ns), "", *report.run_lines(runs)]))
    if picture is not None:
        plot.plot(runs, picture)
    return 0


def what_if_config(recorded: CoreConfig, overrides: dict[str, Any]) -> CoreConfig:
    """The recorded limits with some replaced. The watermark keeps its share of the pool. Raises ValueError."""
    if "num_blocks" in overrides:
        watermark = recorded.watermark * overrides["num_blocks"] // recorded.num_blocks
        overrides = {"watermark": watermark, **overrides}
    return dataclasses.replace(recorded, **overrides)


def _extent(verdict: Verdict) -> str:
    return f"{verdict.num_steps} steps, {verdict.num_calls} calls, {verdict.seconds:.1f} s"


def _print_notes(recording: Recording) -> None:
    for note in recording.notes:
        print(f"{_PROG}: {note}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
