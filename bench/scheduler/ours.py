"""Octavo's core as a contender; `python -m bench.scheduler.ours` serves the commands of `measure.serve`."""

from __future__ import annotations

import platform

from bench.scheduler.measure import serve
from bench.scheduler.workload import BLOCK_SIZE, TOKEN_BUDGET, Case, Request, sampled_token
from scheduler.collector import collect_seldom
from scheduler.core.config import CoreConfig
from scheduler.core.plan import StepPlan
from scheduler.core.result import StepOutput, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec


class Octavo:
    """The core with the limits of a case."""

    def __init__(self, case: Case) -> None:
        self.core = Scheduler(
            CoreConfig(
                num_blocks=case.num_blocks,
                block_size=BLOCK_SIZE,
                max_num_seqs=case.running,
                max_num_batched_tokens=TOKEN_BUDGET,
                max_plans_in_flight=case.plans_in_flight,
                enable_prefix_caching=case.load == "mixed",
                max_num_waiting=1 << 20,
            )
        )
        collect_seldom()  # as the service does

    def prepare(self, request: Request) -> SequenceSpec:
        return SequenceSpec(sequence_id=request.number, prompt=tuple(request.prompt), max_tokens=request.num_output)

    def add(self, spec: SequenceSpec) -> None:
        self.core.add(spec)

    def schedule(self) -> StepPlan | None:
        plan = self.core.schedule()
        return plan if isinstance(plan, StepPlan) else None

    def size(self, plan: StepPlan) -> tuple[int, int]:
        return len(plan.rows), sum(plan.num_tokens)

    def answer(self, plan: StepPlan) -> StepResult:
        tokens = tuple(sampled_token(plan.step_id, place) for place in range(sum(plan.max_samples)))
        return StepResult(epoch=0, step_id=plan.step_id, num_sampled=plan.max_samples, tokens=tokens)

    def update(self, plan: StepPlan, result: StepResult) -> StepOutput:
        return self.core.update(result)

    def num_ended(self, update: StepOutput) -> int:
        return len(update.ends)


if __name__ == "__main__":
    serve(Octavo, {"python": platform.python_version()})
