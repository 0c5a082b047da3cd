"""The worker's rows: what each sequence of a stream is right now, as a fold over the stream's plans and tokens.

Owns the token ids, block tables, counts and sampling parameters of every row, as one array per field, so that a step of
decode rows costs a few array operations however many rows there are. `apply` makes the changes of a plan and checks it
against the rows; `commit` records what the step computed and sampled. A decode row's plan carries no token: the row
holds its last sampled one.

Invariants of a row in use: 0 <= num_computed <= num_tokens <= max_model_len; its first num_blocks table entries are set
and hold at least the computed tokens. A row that is not in use has num_tokens 0, and its other fields mean nothing.
A table that has raised is no longer consistent; it belongs to a stream that ends with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from worker.logit_adjuster import Adjustments
from worker.prompt_scorer import Scoring
from worker.row_rules import NO_MATCHER, Matcher, RowRules
from worker.sampler import SamplingColumns
from worker.step import Admission, IntColumn, Limits, LogitRules, PlanError, StepPlan

if TYPE_CHECKING:
    from worker.input_batch import DecodeRows


class Grammars(Protocol):
    """What makes matchers of grammars."""

    def matcher(self, rules: LogitRules, output: list[int]) -> Matcher:
        """That of a row's grammar, which has seen the output."""
        ...


class SequenceTable:
    """Rows of one stream. token_ids [rows, max_model_len] and block_tables [rows, max blocks] int32; num_tokens,
    num_computed and num_blocks [rows] int32. decoding: the last plan's rows as the next one may find them; None if it
    will find nothing ready."""

    def __init__(self, limits: Limits, grammars: Grammars | None = None) -> None:
        """grammars: what makes matchers for rows that have a grammar; None if no row may have one."""
        rows = limits.num_rows
        self._grammars = grammars
        self._limits = limits
        self._last_step_id = -1
        self.token_ids = np.zeros((rows, limits.max_model_len), np.int32)
        self.block_tables = np.zeros((rows, limits.max_blocks), np.int32)
        self.num_tokens = np.zeros(rows, np.int32)
        self.num_computed = np.zeros(rows, np.int32)
        self.num_blocks = np.zeros(rows, np.int32)
        self.decoding: DecodeRows | None = None
        # But for output_index, which holds what is to be added to num_tokens: so it need not be counted.
        self._sampling = SamplingColumns(
            temperature=np.zeros(rows, np.float64),
            top_k=np.zeros(rows, np.int32),
            top_p=np.ones(rows, np.float64),
            min_p=np.zeros(rows, np.float64),
            num_logprobs=np.full(rows, -1, np.int32),
            seeds=np.zeros(rows, np.uint64),
            output_index=np.zeros(rows, np.int64),
        )
        # Rows that have rules for their logits, and rows of whose prompt there are tokens to be scored: most have none.
        self._rules: dict[int, RowRules] = {}
        self._to_score: dict[int, Admission] = {}

    def apply(self, plan: StepPlan) -> None:
        """Makes the plan's releases, admissions and table edits, in this order, and checks its scheduled rows.

        Raises PlanError where the plan does not fit the rows.
        """
        if plan.step_id <= self._last_step_id:
            raise PlanError("step_id", plan.step_id, f"it must be above {self._last_step_id}, the last one")
        self._last_step_id = plan.step_id
        if plan.released_rows.size or plan.admissions:
            self.decoding = None
            self._release(plan.released_rows)
            for admission in plan.admissions:
                self._admit(admission)
        if plan.edit_rows.size:
            self._edit(plan.edit_rows, plan.edit_indices, plan.edit_blocks)
        if self.decoding is not None and self.decoding.begin(
            plan, self.block_tables, self.num_blocks, self._limits.max_model_len
        ):
            return
        self.decoding = None
        self._check_scheduled(plan)

    def commit(self, plan: StepPlan, tokens: IntColumn) -> None:
        """Records that the plan's tokens are computed, and appends tokens [R] to the rows that sample.

        A row without a sampled token (its logits were not finite) gets token 0 like any other: the plan after this one
        is on its way already and counts on a token there, and the scheduler drops whatever such a row gives.
        """
        if (decoding := self.decoding) is not None:
            rows = plan.rows
            self.token_ids[rows, decoding.seq_lens] = tokens
            decoding.advance(tokens)
            self.num_computed[rows] = decoding.positions
            self.num_tokens[rows] = decoding.seq_lens
        else:
            self.num_computed[plan.rows] += plan.num_tokens
            rows = sampling_rows(plan)
            places = self.num_tokens[rows]
            self.token_ids[rows, places] = tokens
            self.num_tokens[rows] = places + 1
        if self._rules:
            for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
                if (rules := self._rules.get(row)) is not None:
                    rules.append(token)
        if self._to_score:
            for row in [row for row, admission in self._to_score.items() if not self._num_to_score(row, admission)]:
                del self._to_score[row]

    def sampling(self, plan: StepPlan) -> SamplingColumns:
        """The sampling parameters of the plan's R rows that sample, output_index being that of the token to be sampled
        next. They hold until the plan is committed."""
        if self.decoding is not None:
            return self.decoding.sampling
        rows, columns = sampling_rows(plan), self._sampling
        return SamplingColumns(
            temperature=columns.temperature[rows],
            top_k=columns.top_k[rows],
            top_p=columns.top_p[rows],
            min_p=columns.min_p[rows],
            num_logprobs=columns.num_logprobs[rows],
            seeds=columns.seeds[rows],
            output_index=columns.output_index[rows] + self.num_tokens[rows],
        )

    def adjustments(self, plan: StepPlan) -> Adjustments | None:
        """What the rules of the plan's R rows that sample will make of their logits; None if none of them has any. What
        can be done before the logits are there begins now."""
        if not self._rules:
            return None
        rows = sampling_rows(plan)
        places = np.array([place for place, row in enumerate(rows.tolist()) if row in self._rules], np.int64)
        if not places.size:
            return None
        with_rules = rows[places]
        asking = places[self._sampling.num_logprobs[with_rules] >= 0]
        rules = [self._rules[row] for row in with_rules.tolist()]
        for row in rules:
            row.start()
        return Adjustments(places, rules, asking)

    def scoring(self, plan: StepPlan) -> Scoring | None:
        """The prompt tokens that the plan's rows are to be scored on; None if there are none."""
        if not self._to_score or self._to_score.keys().isdisjoint(plan.rows.tolist()):
            return None
        num_scored = np.zeros(plan.rows.size, np.int32)
        places, targets, num_top = [], [], []
        begin = 0  # of a row's tokens among those of the step
        for i, (row, num_tokens) in enumerate(zip(plan.rows.tolist(), plan.num_tokens.tolist(), strict=True)):
            if (admission := self._to_score.get(row)) is not None:
                start = int(self.num_computed[row])
                first = max(start, admission.num_scored_tokens)
                # The token at `first` predicts the one after it; the prompt's last one predicts none of the prompt.
                last = min(start + num_tokens, admission.num_prompt_tokens - 1)
                num_scored[i] = max(last - first, 0)
                places.append(np.arange(first, last) + (begin - start))
                targets.append(self.token_ids[row, first + 1 : last + 1])
                num_top.append(np.full(num_scored[i], admission.sampling.num_prompt_logprobs, np.int32))
            begin += num_tokens
        if not num_scored.any():
            return None
        return Scoring(
            num_scored=num_scored,
            places=np.concatenate(places).astype(np.int64),
            targets=np.concatenate(targets).astype(np.int64),
            num_top=np.concatenate(num_top),
        )

    def _num_to_score(self, row: int, admission: Admission) -> int:
        """Prompt tokens that the row's next tokens predict and whose logprobs are wanted."""
        done = max(int(self.num_computed[row]), admission.num_scored_tokens)
        return max(admission.num_prompt_tokens - 1 - done, 0)

    def _release(self, rows: IntColumn) -> None:
        for row in rows.tolist():
            if not self.num_tokens[row]:
                raise PlanError("released_rows", row, "the row is free")
            self.num_tokens[row] = 0
            self._rules.pop(row, None)
            self._to_score.pop(row, None)

    def _admit(self, admission: Admission) -> None:
        row, length, blocks = admission.row, admission.token_ids.size, admission.blocks
        if self.num_tokens[row]:
            raise PlanError("admissions.row", row, "the row is in use")
        self.token_ids[row, :length] = admission.token_ids
        self.block_tables[row, : blocks.size] = blocks
        self.num_tokens[row] = length
        self.num_computed[row] = admission.num_computed_tokens
        self.num_blocks[row] = blocks.size
        sampling, columns = admission.sampling, self._sampling
        columns.temperature[row] = sampling.temperature
        columns.top_k[row] = sampling.top_k
        columns.top_p[row] = sampling.top_p
        columns.min_p[row] = sampling.min_p
        columns.num_logprobs[row] = -1 if sampling.num_logprobs is None else sampling.num_logprobs
        columns.seeds[row] = admission.seed
        columns.output_index[row] = admission.output_index - length
        if sampling.rules is not None:
            self._rules[row] = self._make_rules(admission, sampling.rules)
        if sampling.num_prompt_logprobs is not None and self._num_to_score(row, admission):
            self._to_score[row] = admission

    def _make_rules(self, admission: Admission, rules: LogitRules) -> RowRules:
        prompt, output = np.split(admission.token_ids, [admission.num_prompt_tokens])
        matcher: Matcher | None = None
        if rules.grammar:
            matcher = NO_MATCHER if self._grammars is None else self._grammars.matcher(rules, output.tolist())
        width = self._limits.logits_width
        return RowRules(rules, prompt.tolist(), output.tolist(), width=width, matcher=matcher)

    def _edit(self, rows: IntColumn, indices: IntColumn, blocks: IntColumn) -> None:
        self._require_in_use("table_edits.rows", rows)
        places = rows.astype(np.int64) * self.block_tables.shape[1] + indices
        if len(set(places.tolist())) != places.size:
            raise PlanError("table_edits", places.size, "entries must be distinct pairs of row and index")
        # Appended entries are the ones past the row's end. Being distinct, they leave no gap exactly if all of them
        # lie below the new end.
        np.add.at(self.num_blocks, rows, indices >= self.num_blocks[rows])
        beyond = indices >= self.num_blocks[rows]
        if beyond.any():
            place = int(np.argmax(beyond))
            limit = f"row {rows[place]} would have {self.num_blocks[rows[place]]} blocks, no gaps are allowed"
            raise PlanError("table_edits.indices", int(indices[place]), limit)
        self.block_tables[rows, indices] = blocks

    def _check_scheduled(self, plan: StepPlan) -> None:
        rows, samples = plan.rows, plan.max_samples > 0
        known, ends = self.num_tokens[rows], self.num_computed[rows] + plan.num_tokens
        room = self.num_blocks[rows] * self._limits.block_size
        may_sample = (ends == known) & (known < self._limits.max_model_len)
        # One look at all of it; the rule that a bad plan breaks is searched for afterwards. A row that is not in use
        # knows no tokens, so its end lies past what is known.
        if ((ends <= np.minimum(known, room)) & (may_sample | ~samples)).all():
            return
        self._require_in_use("scheduled.rows", rows)
        _require(ends <= known, "scheduled.num_tokens", plan.num_tokens, rows, "more than the tokens not computed yet")
        _require(
            ends <= room, "scheduled.num_tokens", plan.num_tokens, rows, "more than the row's blocks have room for"
        )
        _require(~samples | (ends == known), "scheduled.max_samples", plan.max_samples, rows, "known tokens come after")
        _require(
            may_sample | ~samples, "scheduled.max_samples", plan.max_samples, rows, "the row has max_model_len tokens"
        )

    def _require_in_use(self, column: str, rows: IntColumn) -> None:
        in_use = self.num_tokens[rows] > 0
        if not in_use.all():
            raise PlanError(column, int(rows[np.argmin(in_use)]), "the row is not admitted")


def sampling_rows(plan: StepPlan) -> IntColumn:
    """The scheduled rows that sample, [R], in the order of the plan."""
    return plan.rows[plan.max_samples > 0]


def _require(good: npt.NDArray[np.bool_], column: str, values: IntColumn, rows: IntColumn, complaint: str) -> None:
    if not good.all():
        place = int(np.argmin(good))
        raise PlanError(column, int(values[place]), f"of row {rows[place]}: {complaint}")
