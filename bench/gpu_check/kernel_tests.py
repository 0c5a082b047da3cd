"""The kernels' tests, run by pytest on the device that there is. Without pytest the benchmarks' own checks remain."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.gpu_check.setting import Setting

_ROOT = Path(__file__).parents[2]
_WORKERS = "tests/worker/test_gpu.py"


def run(setting: Setting) -> None:
    """The part. Prints what failed; the row counts."""
    if importlib.util.find_spec("pytest") is None:
        setting.rows.add("kernel tests", note="skipped: there is no pytest")
        return
    on_gpu = setting.device.type == "cuda"
    if on_gpu and not any(Path("/dev").glob("nvidia[0-9]*")):
        raise RuntimeError("there is no /dev/nvidia*, by which the tests know a GPU: they would be interpreted")
    command = [sys.executable, "-m", "pytest", "--no-header", "-p", "no:cacheprovider"]
    command.append("--continue-on-collection-errors")  # a module that lacks a package ends no other
    kernels = sorted(_ROOT.glob("tests/kernels/test_triton_*.py"))
    command += [*(str(path.relative_to(_ROOT)) for path in kernels), _WORKERS]
    if not on_gpu:
        command += ["-k", "silu"]
    elif importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(min(16, os.cpu_count() or 1))]  # most of their time is compilation
    output, ending = _run(command, 0.9 * setting.budget_s)
    if ending != "failed":
        print(output[-6000:])
    passed, failed = count_outcomes(output)
    ratio = passed / max(1, passed + failed)
    setting.rows.add("kernel tests", passed, "passed", ratio=ratio, note=f"{failed} {ending}")
    if ending != "failed" or failed or not passed:
        raise AssertionError(f"{passed} kernel tests passed, {failed} {ending}")


def _run(command: list[str], seconds: float) -> tuple[str, str]:
    """Output, and how it ended."""
    with tempfile.TemporaryFile("w+") as file:  # a pipe would stay open for as long as any process of pytest's does
        process = subprocess.Popen(command, cwd=_ROOT, stdout=file, stderr=subprocess.STDOUT)
        try:
            status = process.wait(seconds)
            ending = "failed" if status == 0 else f"failed, pytest's status {status}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ending = f"failed, stopped after {seconds:.0f} s"
        file.seek(0)
        return file.read(), ending


def count_outcomes(output: str) -> tuple[int, int]:
    """Passed and failed, from pytest's summary, or from its progress if it did not come to one."""
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", output)}
    if counts:
        return counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)
    progress = "".join(re.findall(r"^([.FEsx]+)(?: +\[ *\d+%\])?$", output, re.MULTILINE))
    return progress.count("."), progress.count("F") + progress.count("E")
