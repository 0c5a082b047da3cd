"""The thread that computes: what it outlives."""

from __future__ import annotations

import subprocess
import sys

from tests.integration.processes import REPOSITORY, child_environment

# In a process of its own, because a job that raises ends the process.
LEAVE_A_JOB_BEHIND = """
import asyncio, threading
import uvloop
from worker.executor import Executor, post

executor, closed, ran = Executor(), threading.Event(), threading.Event()

async def leave():
    loop = asyncio.get_running_loop()
    calls = [asyncio.create_task(executor.call(closed.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    executor.submit(lambda: post(loop, ran.clear))

uvloop.run(leave())
closed.set()
executor.submit(ran.set)
assert ran.wait(60)
"""


def test_a_job_that_ends_after_its_event_loop_harms_nobody() -> None:
    command = [sys.executable, "-c", LEAVE_A_JOB_BEHIND]
    done = subprocess.run(
        command, env=child_environment(), cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
