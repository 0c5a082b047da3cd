"""Plans and limits as the worker's tests write them: messages, with all left out that a test does not need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.worker.v1alpha1 import worker_pb2 as pb
from worker import wire
from worker.step import Limits, StepPlan

LIMITS = Limits(
    num_rows=4,
    num_device_blocks=32,
    num_host_blocks=8,
    block_size=4,
    logits_width=100,
    max_model_len=16,
    max_num_batched_tokens=20,
)


def admission(
    row: int,
    token_ids: Sequence[int],
    blocks: Iterable[int],
    *,
    num_computed_tokens: int = 0,
    num_prompt_tokens: int | None = None,
    output_index: int = 0,
    seed: int = 0,
    **sampling: float | int,
) -> pb.Admission:
    """A sequence whose id is its row; all its tokens are prompt unless said otherwise; greedy unless said otherwise."""
    return pb.Admission(
        sequence_id=row,
        row=row,
        num_prompt_tokens=len(token_ids) if num_prompt_tokens is None else num_prompt_tokens,
        token_ids=token_ids,
        block_tables=[pb.BlockTable(blocks=blocks)],
        num_computed_tokens=num_computed_tokens,
        sampling=pb.Sampling(**{"top_p": 1.0, **sampling}),
        seed=seed,
        output_index=output_index,
    )


def step(
    step_id: int,
    rows: Sequence[int],
    num_tokens: Sequence[int] | None = None,
    max_samples: Sequence[int] | None = None,
    **parts: object,
) -> pb.StepPlan:
    """A plan that schedules rows; by default each computes one token and samples."""
    scheduled = pb.Scheduled(
        rows=rows,
        num_tokens=[1] * len(rows) if num_tokens is None else num_tokens,
        max_samples=[1] * len(rows) if max_samples is None else max_samples,
    )
    return pb.StepPlan(step_id=step_id, scheduled=scheduled, **parts)


def read(message: pb.StepPlan, limits: Limits = LIMITS) -> StepPlan:
    """The plan as the worker's parts get it."""
    return wire.read_plan(message, limits)
