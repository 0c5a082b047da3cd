"""The GPU check, run dry: every part on the CPU, tiny and interpreted. Its figures mean nothing; its lines all run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu_check.kernel_tests import count_outcomes
from bench.gpu_check.parts import PARTS, run_apart
from bench.gpu_check.rows import Row, Rows, comparisons, read_rows, table
from bench.gpu_check.setting import Setting
from bench.gpu_check.sizes import DRY
from tests.integration.processes import REPOSITORY

CAP_S = 280.0


def check(tmp_path: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, what was printed, and the JSON."""
    output = tmp_path / "results" / "gpu-check.json"
    command = [sys.executable, "-m", "bench.gpu_check", "--dry-run", "--output", str(output), *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=CAP_S, check=False)
    return done.returncode, done.stderr + done.stdout, json.loads(output.read_text())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton")
def test_a_dry_run_runs_every_part(tmp_path: Path) -> None:
    code, printed, found = check(tmp_path)
    assert code == 0, printed
    rows = [Row(**row) for row in found["rows"]]
    assert {row.part for row in rows} == {*PARTS, "model /", "served /"}
    assert all(row.value is not None and row.value > 0 for row in rows), printed
    assert not any("WRONG" in row.peer for row in rows)
    measured = {(row.part, row.what) for row in rows}
    assert {("attention", "decode, 2 x 40"), ("model", "2 x (18 + 3): decode step")} <= measured
    assert found["torch"] and found["triton"] and found["date"] and "dry run" in found["card"]
    assert printed.rstrip().splitlines()[-2] == table(rows).splitlines()[-1]  # the table is what comes last


def test_parts_without_time_are_rows_and_a_failure(tmp_path: Path) -> None:
    code, printed, found = check(tmp_path, "--seconds", "0", "--parts", "attention,served")
    assert code == 1
    assert [(row["part"], row["note"]) for row in found["rows"]] == [
        ("attention", "no time is left"),
        ("served", "no time is left"),
    ]
    assert "2 parts FAILED" in printed


def test_a_part_that_a_signal_ends_is_a_row_and_one_failure(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGABRT)\n")
    rows = tmp_path / "rows"
    assert run_apart(["model"], rows, time.monotonic() + 60, True, [str(tmp_path)]) == 1
    assert [(row.part, row.what, row.note) for row in read_rows(rows)] == [("model", "FAILED", "ended by signal 6")]


def test_the_runner_stands_beside_the_peer_and_the_whole_path_beside_the_runner() -> None:
    rows = [
        Row(part="model", what="16: step", value=4.0, unit="ms"),
        Row(part="model", what="16: all", value=900.0, unit="tokens/s"),
        Row(part="model", what="64: all", value=2000.0, unit="tokens/s"),
        Row(part="peer-transformers", what="16: step", value=10.0, unit="ms"),
        Row(part="peer-transformers", what="16: all", value=450.0, unit="tokens/s"),
        Row(part="served", what="64: all", value=1900.0, unit="tokens/s"),
        Row(part="served", what="FAILED", note="no"),
    ]
    assert [(row.part, row.what, row.peer, row.peer_value, row.ratio) for row in comparisons(rows)] == [
        ("model /", "16: step", "peer-transformers", 10.0, 2.5),
        ("model /", "16: all", "peer-transformers", 450.0, 2.0),
        ("served /", "64: all", "model", 2000.0, 0.95),
    ]


def test_a_measurement_that_fails_is_a_row_and_spares_the_others(tmp_path: Path) -> None:
    setting = Setting(device=torch.device("cpu"), sizes=DRY, rows=Rows(tmp_path / "rows", "attention"), budget_s=1)
    with pytest.raises(RuntimeError, match="1 of 2 measurements: decode"):
        setting.measure({"decode": lambda: int("x"), "prefill": lambda: setting.rows.add("prefill", 1.0)})
    failed, measured = read_rows(tmp_path / "rows")
    assert failed.what == "decode" and "ValueError" in failed.note and failed.value is None
    assert (measured.what, measured.value) == ("prefill", 1.0)


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("....\n3 passed, 1 skipped in 2.1s\n", (3, 0)),
        ("..F.\nFAILED x\n1 failed, 3 passed, 2 errors in 9s\n", (3, 3)),
        ("....F.s.                     [ 40%]\n..F", (8, 2)),  # stopped before its summary
        ("ERROR: file or directory not found: x\n", (0, 0)),
    ],
)
def test_the_kernels_tests_are_counted_even_if_they_were_stopped(output: str, counts: tuple[int, int]) -> None:
    assert count_outcomes(output) == counts
