"""Collects the columns of a plan while `schedule` walks the queues."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.live import LiveSequence, Queue
from scheduler.core.plan import Admission, StepPlan


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """What a plan in flight computes for one sequence: tokens [start, start + num_tokens), and whether it samples."""

    sequence: LiveSequence
    start: int
    num_tokens: int
    samples: bool

    @property
    def is_awaited(self) -> bool:
        """Whether the result still matters: the sequence lives, and what it computed here is to be trusted."""
        return self.sequence.queue is not Queue.FINISHED and not self.sequence.num_void_plans


@dataclass(frozen=True, slots=True)
class PlanInFlight:
    """A plan whose result is not back. Results are read against these rows, not against what the rows hold by then."""

    step_id: int
    rows: tuple[PlannedRow, ...]


class PlanBuilder:
    """One plan under construction. `budget` is what is left of the token budget."""

    def __init__(self, step_id: int, budget: int) -> None:
        self.step_id = step_id
        self.budget = budget
        self.rows: list[PlannedRow] = []
        self._admissions: list[Admission] = []
        self._edits: list[tuple[int, int, int]] = []

    def admit(self, sequence: LiveSequence) -> None:
        """Announces a sequence, as it is before this plan computes anything of it, to its row."""
        spec = sequence.spec
        self._admissions.append(
            Admission(
                sequence_id=spec.sequence_id,
                row=sequence.row,
                num_prompt_tokens=len(spec.prompt),
                token_ids=tuple(sequence.token_ids),
                blocks=tuple(sequence.blocks),
                num_computed_tokens=sequence.num_computed,
                sampling=spec.sampling,
                adapter_id=0,
                seed=spec.seed,
                output_index=sequence.num_output,
            )
        )

    def append_blocks(self, row: int, first_index: int, blocks: tuple[int, ...]) -> None:
        """Extends a row's block table from `first_index` on."""
        for offset, block in enumerate(blocks):
            self._edits.append((row, first_index + offset, block))

    def compute(self, sequence: LiveSequence, num_tokens: int) -> None:
        """Schedules the next tokens of a sequence and advances its planned progress."""
        known = len(sequence.token_ids) + sequence.num_in_flight_tokens
        samples = sequence.num_computed + num_tokens == known
        self.rows.append(PlannedRow(sequence, sequence.num_computed, num_tokens, samples))
        self.budget -= num_tokens
        sequence.num_computed += num_tokens
        sequence.num_in_flight_tokens += samples
        sequence.num_in_flight_plans += 1

    def build(self, released_rows: list[int]) -> StepPlan:
        """The plan, with the rows that were freed since the one before."""
        return StepPlan(
            step_id=self.step_id,
            released_rows=tuple(released_rows),
            admissions=tuple(self._admissions),
            edit_rows=tuple(edit[0] for edit in self._edits),
            edit_indices=tuple(edit[1] for edit in self._edits),
            edit_blocks=tuple(edit[2] for edit in self._edits),
            rows=tuple(row.sequence.row for row in self.rows),
            num_tokens=tuple(row.num_tokens for row in self.rows),
            max_samples=tuple(int(row.samples) for row in self.rows),
        )
