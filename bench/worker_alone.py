"""The worker without a scheduler, a network or a client: the same plans, made beforehand, one after the other.

What the whole of Octavo loses against this is the price of the services. `python -m bench.worker_alone MODEL_DIR`
serves the commands of `measure.serve`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from bench.measure import Outcome, serve
from bench.workload import KV_CACHE_TOKENS, MAX_NUM_SEQS, THREADS, Request
from octavo.worker.v1alpha1 import worker_pb2 as pb
from scheduler import wire as scheduler_wire
from scheduler.core.config import CoreConfig
from scheduler.core.plan import StepPlan
from scheduler.core.result import StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from worker import wire as worker_wire
from worker.assembly import load_worker
from worker.config import WorkerConfig
from worker.sequence_table import SequenceTable
from worker.step import Limits

_BLOCK_SIZE = 16


class WorkerAlone:
    """A loaded worker's runner, called in this process."""

    settings: Mapping[str, Any] = {"threads": THREADS, "dtype": "bfloat16"}
    processes: Mapping[str, int] = {"worker": os.getpid()}

    def __init__(self, model: str) -> None:
        loaded = load_worker(
            WorkerConfig(
                model=model,
                dtype="bfloat16",
                block_size=_BLOCK_SIZE,
                num_gpu_blocks_override=KV_CACHE_TOKENS // _BLOCK_SIZE,
                swap_space=0,
                threads=THREADS,
            )
        )
        self._runner = loaded.runner
        capacity = loaded.capacity
        self._core = CoreConfig(num_blocks=capacity.num_device_blocks, max_num_seqs=MAX_NUM_SEQS)
        self._limits = Limits(
            num_rows=MAX_NUM_SEQS,
            num_device_blocks=capacity.num_device_blocks,
            num_host_blocks=0,
            block_size=_BLOCK_SIZE,
            logits_width=capacity.logits_width,
            max_model_len=capacity.max_model_len,
            max_num_batched_tokens=self._core.max_num_batched_tokens,
        )
        self._prefix_caching = True

    def use(self, *, prefix_caching: bool) -> None:
        self._prefix_caching = prefix_caching

    def run(self, requests: Sequence[Request]) -> Outcome:
        steps = [
            (worker_wire.read_plan(message, self._limits), sequences)
            for message, sequences in _plans(requests, self._core, self._prefix_caching)
        ]
        table = SequenceTable(self._limits)
        token_ids: list[list[int]] = [[] for _ in requests]
        token_s: list[list[float]] = [[] for _ in requests]
        begin = time.perf_counter()
        for plan, sequences in steps:
            tokens = self._runner.execute(table, plan).tokens.tolist()
            now = time.perf_counter() - begin
            for sequence, token in zip(sequences, tokens, strict=True):
                token_ids[sequence].append(token)
                token_s[sequence].append(now)
        return Outcome(seconds=time.perf_counter() - begin, token_ids=token_ids, token_s=token_s)


def _plans(
    requests: Sequence[Request], config: CoreConfig, prefix_caching: bool
) -> list[tuple[pb.StepPlan, tuple[int, ...]]]:
    """Every plan that the scheduler makes for a batch that arrives at once, and the sequences that get its tokens.

    Greedy decoding of exact lengths: plans do not depend on the tokens, so any will do.
    """
    core = Scheduler(
        CoreConfig(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_prefix_caching=prefix_caching,
        )
    )
    for number, request in enumerate(requests):
        core.add(SequenceSpec(sequence_id=number, prompt=request.prompt, max_tokens=request.num_output))
    plans: list[tuple[pb.StepPlan, tuple[int, ...]]] = []
    in_flight: list[StepPlan] = []
    while True:
        while isinstance(plan := core.schedule(), StepPlan):
            in_flight.append(plan)
        if not in_flight:
            return plans
        oldest = in_flight.pop(0)
        tokens = (0,) * sum(oldest.max_samples)
        result = StepResult(epoch=0, step_id=oldest.step_id, num_sampled=oldest.max_samples, tokens=tokens)
        plans.append((scheduler_wire.plans_message([oldest]).plans.plans[0], core.update(result).sequence_ids))


if __name__ == "__main__":
    serve(lambda: WorkerAlone(sys.argv[1]), {name: version(name) for name in ("octavo", "torch")})
