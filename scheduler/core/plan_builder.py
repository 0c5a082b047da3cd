"""Collects the columns of a plan while `schedule` walks the queues, and remembers a plan until its result is back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.core.decode_batch import DecodeColumns
from scheduler.core.live import LiveSequence
from scheduler.core.plan import NO_COPIES, Admission, BlockCopies, StepPlan


class PlannedRow(NamedTuple):
    """What a plan in flight computes for one sequence: tokens [start, start + num_tokens), and whether it samples."""

    sequence: LiveSequence
    start: int
    num_tokens: int
    samples: bool


@dataclass(slots=True)
class PlanInFlight:
    """A plan whose result is not back. Results are read against these rows, not against what the rows hold by then.

    clock: the decode batch's when the plan was made. decodes: the columns that come first; rows: those that follow.
    gone: members of `decodes` that have left the batch since, by their place there; they are settled one by one.
    moved: where in `decodes` those are whose slot in the batch has changed since, by sequence id.
    """

    step_id: int
    clock: int
    decodes: DecodeColumns
    rows: tuple[PlannedRow, ...]
    max_samples: tuple[int, ...]
    gone: dict[int, PlannedRow] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Token positions that the plan computes."""
        return len(self.decodes.rows) + sum(row.num_tokens for row in self.rows)


class PlanBuilder:
    """One plan under construction. `budget` is what is left of the token budget."""

    def __init__(self, step_id: int, budget: int) -> None:
        self.step_id = step_id
        self.budget = budget
        self.rows: list[PlannedRow] = []
        self.decodes = DecodeColumns()
        self.swap_in: list[tuple[int, int]] = []
        self.copy_on_write: list[tuple[int, int]] = []
        self._admissions: list[Admission] = []
        self.edits: list[tuple[int, int, int]] = []

    def admit(self, sequence: LiveSequence) -> None:
        """Announces a sequence, as it is before this plan computes anything of it, to its row."""
        spec, num_output = sequence.spec, sequence.num_output
        self._admissions.append(
            Admission(
                sequence_id=spec.sequence_id,
                row=sequence.row,
                num_prompt_tokens=len(spec.prompt),
                token_ids=tuple(sequence.token_ids) if num_output else spec.prompt,
                blocks=tuple(sequence.blocks),
                num_computed_tokens=sequence.num_computed,
                sampling=spec.sampling,
                adapter_id=0,
                seed=spec.seed,
                output_index=num_output,
                num_scored_tokens=sequence.num_scored,
            )
        )

    def append_blocks(self, row: int, first_index: int, blocks: list[int]) -> None:
        """Extends a row's block table from `first_index` on."""
        for index, block in enumerate(blocks, first_index):
            self.edits.append((row, index, block))

    def drop_blocks(self, row: int) -> None:
        """Takes back what extends a row's block table: the row is released."""
        self.edits = [edit for edit in self.edits if edit[0] != row]

    def compute(self, sequence: LiveSequence, num_tokens: int) -> bool:
        """Schedules the next tokens of a sequence and advances its planned progress; returns whether it samples."""
        samples = sequence.num_computed + num_tokens == sequence.planned_len
        self.rows.append(PlannedRow(sequence, sequence.num_computed, num_tokens, samples))
        self.budget -= num_tokens
        sequence.num_computed += num_tokens
        sequence.num_in_flight_tokens += samples
        sequence.num_in_flight_plans += 1
        return samples

    def build(self, released_rows: list[int], swap_out: list[tuple[int, int]]) -> StepPlan:
        """The plan, with the rows that were freed and the blocks that must be saved since the one before."""
        rows, num_tokens, max_samples = self.decodes.rows, self.decodes.ones, self.decodes.ones
        if self.rows:
            rows += tuple([row.sequence.row for row in self.rows])
            num_tokens += tuple([row.num_tokens for row in self.rows])
            max_samples += tuple([int(row.samples) for row in self.rows])
        edit_rows, edit_indices, edit_blocks = _columns(self.edits, 3)
        return StepPlan(
            step_id=self.step_id,
            released_rows=tuple(released_rows),
            swap_out=_copies(swap_out),
            swap_in=_copies(self.swap_in),
            copy_on_write=_copies(self.copy_on_write),
            admissions=tuple(self._admissions),
            edit_rows=edit_rows,
            edit_indices=edit_indices,
            edit_blocks=edit_blocks,
            rows=rows,
            num_tokens=num_tokens,
            max_samples=max_samples,
        )


def _copies(pairs: list[tuple[int, int]]) -> BlockCopies:
    return BlockCopies(*_columns(pairs, 2)) if pairs else NO_COPIES


def _columns(
    entries: list[tuple[int, ...]] | list[tuple[int, int]] | list[tuple[int, int, int]], width: int
) -> tuple[tuple[int, ...], ...]:
    return tuple(zip(*entries, strict=True)) if entries else ((),) * width
