"""What one step is made of: the plan that goes to the worker, and what `schedule` may answer instead of one.

A plan is packed columns and diffs. Its parts are applied in the order of their fields: releases, copies, admissions,
table edits, scheduled tokens. Columns that belong together have the same length. Plans are immutable and compare by
value, so two runs of the core can be compared plan by plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from scheduler.core.sequence import Sampling


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """One phase of block copies: every source is read before any destination is written by the next phase."""

    sources: tuple[int, ...] = ()
    destinations: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.destinations):
            raise ValueError("a copy phase must have as many sources as destinations")

    def __len__(self) -> int:
        return len(self.sources)


NO_COPIES = BlockCopies()


class Admission(NamedTuple):
    """Gives a worker's row to a sequence: a new prompt, a prefix hit, a recompute, a swap-in or a fork.

    token_ids: all settled tokens, the prompt's `num_prompt_tokens` first.
    blocks: the block table so far.
    num_computed_tokens: leading tokens whose KV is in the blocks already.
    output_index: index of the next token to be sampled, the counter of its draw.
    num_scored_tokens: prompt tokens, the first not counted, whose logprobs have been delivered.
    """

    sequence_id: int
    row: int
    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    blocks: tuple[int, ...]
    num_computed_tokens: int
    sampling: Sampling
    adapter_id: int
    seed: int
    output_index: int
    num_scored_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step of one worker.

    swap_out (device to host), swap_in (host to device), copy_on_write (device to device): phases, in this order.
    edit_rows, edit_indices, edit_blocks: entries to set in block tables.
    rows, num_tokens, max_samples: tokens to compute per row, in the order in which the result reports them; max_samples
    is 1 where the last known token is among them, so that the next one can be drawn, else 0.
    """

    step_id: int
    released_rows: tuple[int, ...] = ()
    swap_out: BlockCopies = NO_COPIES
    swap_in: BlockCopies = NO_COPIES
    copy_on_write: BlockCopies = NO_COPIES
    admissions: tuple[Admission, ...] = ()
    edit_rows: tuple[int, ...] = ()
    edit_indices: tuple[int, ...] = ()
    edit_blocks: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    num_tokens: tuple[int, ...] = ()
    max_samples: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError(f"step {self.step_id}: a plan must schedule at least one row")
        if not len(self.rows) == len(self.num_tokens) == len(self.max_samples):
            raise ValueError(f"step {self.step_id}: scheduled columns differ in length")
        if not len(self.edit_rows) == len(self.edit_indices) == len(self.edit_blocks):
            raise ValueError(f"step {self.step_id}: table edit columns differ in length")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing can be planned before a result is back: the pipeline is full, or all that could run awaits a token."""


@dataclass(frozen=True, slots=True)
class Idle:
    """There is nothing to run and no result to wait for."""


WAITING = Waiting()
IDLE = Idle()
