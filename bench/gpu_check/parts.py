"""The parts of the check. Each runs in a process of its own: a kernel that hangs or breaks the GPU's context ends its
part alone, and one part's memory is given back before the next."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gpu_check.rows import Rows, one_line, read_rows

ROOT = Path(__file__).parents[2]
_GRACE_S = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """name: of its module too, with underscores. budget_s: after which it is ended."""

    name: str
    budget_s: float

    @property
    def run(self) -> Callable[..., None]:
        """Takes a Setting."""
        module = importlib.import_module(f"bench.gpu_check.{self.name.replace('-', '_')}")
        run: Callable[..., None] = module.run
        return run


PARTS = {
    part.name: part
    for part in (
        Part(name="kernel-tests", budget_s=130),
        Part(name="attention", budget_s=60),
        Part(name="fused-ops", budget_s=40),
        Part(name="model", budget_s=100),
        Part(name="peer-transformers", budget_s=100),
        Part(name="served", budget_s=85),
        Part(name="tiles", budget_s=55),
    )
}


def run_here(names: Sequence[str], rows_file: Path, dry_run: bool) -> int:
    """Runs parts in this process, one after the other. An error is a row. -> how many failed."""
    import torch

    from bench.gpu_check.setting import Setting
    from bench.gpu_check.sizes import DRY, FULL

    failed = 0
    for name in names:
        rows = Rows(rows_file, name)
        setting = Setting(
            device=torch.device("cpu" if dry_run else "cuda"),
            sizes=DRY if dry_run else FULL,
            rows=rows,
            budget_s=PARTS[name].budget_s,
        )
        try:
            PARTS[name].run(setting)
        except Exception as error:
            failed += 1
            traceback.print_exc()
            rows.add("FAILED", note=one_line(error))
    return failed


def run_apart(names: Sequence[str], rows_file: Path, deadline: float, dry_run: bool, python_path: Sequence[str]) -> int:
    """Runs parts in one new process, ended when their budgets are spent or at the deadline (time.monotonic).
    -> how many failed, at least 1 if the process did not end well."""
    budget = min(sum(PARTS[name].budget_s for name in names), deadline - time.monotonic())
    if budget < 5:
        for name in names:
            Rows(rows_file, name).add("skipped", note="no time is left")
        return len(names)
    print(f"-- {', '.join(names)}, at most {budget:.0f} s", flush=True)
    command = [sys.executable, "-m", "bench.gpu_check", "--parts", ",".join(names), "--rows", str(rows_file)]
    paths = [*python_path, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    if dry_run:
        command.append("--dry-run")
        environment["TRITON_INTERPRET"] = "1"
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        status = process.wait(budget)
        if status >= 0:
            return status
        note = f"ended by signal {-status}"
    except subprocess.TimeoutExpired:
        note = f"stopped after {budget:.0f} s"
    finally:
        _end(process)
    started = {row.part for row in read_rows(rows_file)}
    late = [name for name in names if name not in started][:1] or names[-1:]
    Rows(rows_file, late[0]).add("FAILED", note=note)
    return 1


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started. An interrupt lets a part end the services that it runs; the rest is one session."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
