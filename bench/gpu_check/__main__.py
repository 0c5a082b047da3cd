"""`make gpu-check`: what the GPU kernels and the worker do on this machine's GPU, in under ten minutes.

It runs with the Python, torch and Triton that are installed here and needs no others: the kernels' tests where there is
pytest, the peer where there is transformers, the served model where gRPC and its like are, or their wheels in a folder
(--wheels). Every part has a budget of time and a process of its own, and fails into the table, which comes last. The
same rows go to --output as JSON, with the card, the versions and the date.

The wheels, fetched where there is a network, for the Python of the GPU's machine (11 MB; it has what else they need):
    pip download -c constraints.txt --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \\
      --platform manylinux_2_31_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d WHEELS \\
      grpcio protobuf grpcio-health-checking grpcio-reflection grpcio-status googleapis-common-protos structlog gguf \\
      llguidance
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from bench.gpu_check import machine
from bench.gpu_check.parts import PARTS, ROOT, run_apart, run_here
from bench.gpu_check.rows import Rows, comparisons, read_rows, table

_TOGETHER = (("kernel-tests",), ("attention", "fused-ops", "model", "peer-transformers", "tiles"), ("served",))
"""In a dry run, where processes take longer to start than to run."""


def main() -> int:
    arguments = _parse()
    names = arguments.parts.split(",") if arguments.parts else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        print(f"gpu-check: --parts {unknown[0]} is none of {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if arguments.rows is not None:
        return run_here(names, arguments.rows, arguments.dry_run)
    if not arguments.dry_run and not _has_gpu():
        print("gpu-check: PyTorch sees no GPU here; --dry-run runs every line on the CPU", file=sys.stderr)
        return 2
    return _check(arguments, names)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description="Checks and measures a GPU.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON (default: a dated file in bench/results)")
    parser.add_argument("--parts", metavar="NAMES", help=f"comma-separated, of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=570, help="for all parts together (default: %(default)s)")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="packages to install where the services miss some")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU, under Triton's interpreter")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # a part's process writes here
    return parser.parse_args()


def _check(arguments: argparse.Namespace, names: list[str]) -> int:
    deadline = time.monotonic() + arguments.seconds
    groups = [[name] for name in names]
    if arguments.dry_run:
        groups = [group for some in _TOGETHER if (group := [name for name in some if name in names])]
    with tempfile.TemporaryDirectory() as temporary:
        rows_file, packages = Path(temporary) / "rows.jsonl", Path(temporary) / "packages"
        python_path = [str(packages), str(ROOT), str(ROOT / "protos" / "gen")]
        failed = 0
        # Before all parts: the worker's own tests need some of them too.
        error = machine.install(arguments.wheels, packages) if arguments.wheels is not None else ""
        found = machine.describe(arguments.dry_run)
        for group in groups:
            if reason := _hindrance(group, error):
                Rows(rows_file, group[0]).add("skipped", note=reason)
                continue
            failed += run_apart(group, rows_file, deadline, arguments.dry_run, python_path)
        rows = read_rows(rows_file)
    rows += comparisons(rows)
    output = _output(arguments)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    print("\n" + "  ".join(f"{name} {value}" for name, value in found.items() if value is not None))
    print(table(rows))
    print(f"{len(rows)} rows in {output}" + (f"; {failed} parts FAILED" if failed else ""), flush=True)
    return 1 if failed else 0


def _hindrance(group: list[str], error: str) -> str:
    """Why a group cannot run here, empty if it can. error: of the wheels' installation."""
    if group == ["peer-transformers"] and machine.version("transformers") is None:
        return "there is no transformers"
    if group != ["served"] or not (missing := machine.missing_for_services()):
        return ""
    return f"missing: {', '.join(missing)} ({error or 'see --wheels'})"


def _output(arguments: argparse.Namespace) -> Path:
    if arguments.output is not None:
        return Path(arguments.output)
    if folder := os.environ.get("OUT"):
        return Path(folder) / "gpu-check.json"
    return ROOT / "bench" / "results" / f"gpu-check-{time.strftime('%Y-%m-%d-%H%M%S')}.json"


if __name__ == "__main__":
    sys.exit(main())
