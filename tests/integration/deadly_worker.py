"""A worker that is killed by some tokens: a plan that admits a sequence with one of them ends the process, or its step.

It stands for what real workers die of, a kernel that crashes on some input, memory that runs out, and is in all else
the worker of this repository.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

from worker.__main__ import main
from worker.runner import Runner
from worker.sequence_table import SequenceTable
from worker.step import StepPlan, StepResult

KILLS: Final = 200
"""Token id that ends the process."""

FAILS: Final = 201
"""Token id that fails the step for want of memory."""


def _arm() -> None:
    execute = Runner.execute

    def deadly(self: Runner, table: SequenceTable, plan: StepPlan) -> StepResult:
        tokens = {int(token) for admission in plan.admissions for token in admission.token_ids}
        if KILLS in tokens:
            os.kill(os.getpid(), signal.SIGKILL)
        if FAILS in tokens:
            raise MemoryError("no memory for this step")
        return execute(self, table, plan)

    Runner.execute = deadly  # type: ignore[method-assign]


if __name__ == "__main__":
    _arm()
    sys.exit(main())
