"""Makes .venv: the pinned packages of constraints.txt and this project, editable. Run by `make setup`.

Checks first what would otherwise fail late or unclearly. A set-up that failed is taken up again by the next run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tools.pip_step import StepError, run_pip

_VENV = Path(".venv")
_PYTHON = _VENV / "bin" / "python"
_LOG = _VENV / "setup.log"
_MIN_PYTHON = (3, 11)
_NEEDED_BYTES = 3_000_000_000  # the CPU build of torch; a CUDA build needs three times as much


def main() -> int:
    """Set up, or print one line and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-index", default="", help="one more package index, for a build of torch of your choice")
    args = parser.parse_args()
    try:
        _check_host()
        _make_venv()
        _install(args.torch_index)
    except StepError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _check_host() -> None:
    if sys.version_info < _MIN_PYTHON:
        version = ".".join(map(str, sys.version_info[:3]))
        raise StepError(f"{sys.executable} is Python {version}; 3.11 or later is needed: make setup PYTHON=python3.11")
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        raise StepError(f"{sys.executable} cannot make virtual environments: install {package} (apt-get install ...)")
    if shutil.which("g++") is None:
        raise StepError("no C++ compiler: g++ is not on PATH; install it (apt-get install g++)")
    free = shutil.disk_usage(".").free
    if free < _NEEDED_BYTES and not _PYTHON.exists():
        raise StepError(
            f"{free / 1e9:.1f} GB are free on this disk, {_NEEDED_BYTES / 1e9:.0f} GB are needed: free some space"
        )


def _make_venv() -> None:
    if (_VENV / "bin" / "pip").exists():  # the last thing that venv makes: without it, a run was interrupted
        return
    print(f"Creating {_VENV} with {sys.executable} (Python {sys.version.split()[0]})", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", _VENV], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        shutil.rmtree(_VENV, ignore_errors=True)
        lines = (made.stderr + made.stdout).strip().splitlines() or ["no message"]
        raise StepError(f"python -m venv {_VENV} failed: {lines[-1]}")


def _install(torch_index: str) -> None:
    # The pip that Python brings along may be too old for dependency groups; the editable build needs its backend.
    pinned = ["--constraint", "constraints.txt", "--disable-pip-version-check"]
    print("Installing the pinned packages of constraints.txt (a minute or more; torch is the largest)", flush=True)
    run_pip(_PYTHON, ["install", *pinned, "--upgrade", "pip", "hatchling"], log=_LOG)
    extra = ["--extra-index-url", torch_index] if torch_index else []
    project = ["--group", "dev", "--no-build-isolation", "--editable", ".[worker]"]
    run_pip(_PYTHON, ["install", *pinned, *extra, *project], log=_LOG)


if __name__ == "__main__":
    sys.exit(main())
