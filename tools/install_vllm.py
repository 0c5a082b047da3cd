"""Makes .venv-vllm: vLLM's CPU build, as far as its scheduler needs it, for `make bench-scheduler`.

An environment of its own, because vLLM pins other versions of what both use.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tools.pip_step import StepError, run_pip

_VENV = Path(".venv-vllm")
_REQUIREMENTS = Path("bench/scheduler/peer_requirements.txt")
_TORCH = "torch==2.13.0"
_IMPORTS = "import vllm.v1.core.sched.async_scheduler, vllm.config, vllm.model_executor.models.llama"


def main() -> int:
    """Install unless vLLM's scheduler can be imported already, or print one line and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-index", default="", help="one more package index, for a CPU build of torch")
    arguments = parser.parse_args()
    if _is_complete():
        return 0
    try:
        _install(arguments.torch_index)
    except StepError as error:
        print(f"install_vllm: {error}", file=sys.stderr)
        return 1
    return 0


def _is_complete() -> bool:
    python = _VENV / "bin" / "python"
    return python.exists() and _imports(python).returncode == 0


def _imports(python: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-c", _IMPORTS], capture_output=True, text=True, check=False)


def _install(torch_index: str) -> None:
    print(f"Creating {_VENV} for vLLM's scheduler (minutes; torch is the largest)", flush=True)
    shutil.rmtree(_VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", _VENV], check=True)
    python, log = _VENV / "bin" / "python", _VENV / "install.log"
    index = ["--extra-index-url", torch_index] if torch_index else []
    run_pip(python, ["install", *index, _TORCH], log=log)
    run_pip(python, ["install", "--no-deps", "--requirement", str(_REQUIREMENTS)], log=log)
    probe = _imports(python)
    if probe.returncode != 0:
        cause = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        raise StepError(f"vLLM is installed in {_VENV} but does not import: {cause}")


if __name__ == "__main__":
    sys.exit(main())
