"""The scheduler runs where torch is not installed: here it is made impossible to import, with what needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clients import Client
from tests.integration.harness import scheduler_process, worker_process
from tests.integration.processes import REPOSITORY, child_environment
from tests.oracle.lookup import LookupOracle, chain
from tests.oracle.tokenizer import EOS, byte_ids

BLOCKER = """
import importlib.abc, runpy, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "triton", "safetensors", "worker", "kernels"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
runpy.run_module("scheduler", run_name="__main__", alter_sys=True)
"""


def test_help_needs_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER, "--help"],
        cwd=REPOSITORY,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--max-num-batched-tokens" in done.stdout


def test_a_request_is_served_without_torch_in_the_scheduler(tmp_path: Path) -> None:
    model = LookupOracle(chain(*byte_ids("?yes"), EOS)).write(tmp_path / "model")
    worker = worker_process(model, tmp_path)
    scheduler = scheduler_process(model, tmp_path, worker.address, program=["-c", BLOCKER])
    try:
        worker.start()
        scheduler.start().wait_serving()
        with Client(scheduler.address) as client:
            assert client.complete("Is it so?", temperature=0.0, timeout=60).text == "yes"
    finally:
        scheduler.kill()
        worker.kill()
