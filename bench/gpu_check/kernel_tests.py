"""The kernels' tests, run by pytest on the device that there is. Without pytest the benchmarks' own checks remain."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
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
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    if on_gpu:
        kernels = sorted(_ROOT.glob("tests/kernels/test_triton_*.py"))
        command += [*(str(path.relative_to(_ROOT)) for path in kernels), _WORKERS, "-k", "not cubin"]
    else:
        command += ["tests/kernels", "-k", "silu"]
    if on_gpu and importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(min(8, os.cpu_count() or 1))]  # most of their time is compilation
    output, ending = _run(command, 0.9 * setting.budget_s)
    if ending != "failed":
        print(output[-6000:])
    passed, failed = count_outcomes(output)
    setting.rows.add(
        "kernel tests",
        passed,
        "passed",
        peer=ending,
        peer_value=failed,
        ratio=passed / max(1, passed + failed),
    )
    if failed or not passed:
        raise AssertionError(f"{failed} kernel tests failed, {passed} passed")


def _run(command: list[str], seconds: float) -> tuple[str, str]:
    """Output, and how it ended."""
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate()
        return output, f"failed, stopped after {seconds:.0f} s"
    return output, "failed" if process.returncode == 0 else f"failed, pytest's status {process.returncode}"


def count_outcomes(output: str) -> tuple[int, int]:
    """Passed and failed, from pytest's summary, or from its progress if it did not come to one."""
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", output)}
    if counts:
        return counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)
    progress = "".join(re.findall(r"^([.FEsx]+)(?: +\[ *\d+%\])?$", output, re.MULTILINE))
    return progress.count("."), progress.count("F") + progress.count("E")
