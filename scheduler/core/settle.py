"""Reading a worker's result against the plan that it answers."""

from __future__ import annotations

from itertools import accumulate
from typing import Final, TypeVar

from scheduler.core.counters import Counters
from scheduler.core.errors import ResultMismatchError
from scheduler.core.live import FINISHED, LiveSequence
from scheduler.core.plan_builder import PlanInFlight, PlannedRow
from scheduler.core.result import OK, End, EndReason, PromptScores, RowFlag, StepOutput, StepResult

_T = TypeVar("_T")

END_OF_FLAG: Final = {
    RowFlag.NON_FINITE: EndReason.NON_FINITE,
    RowFlag.DEAD_END: EndReason.DEAD_END,
    RowFlag.GRAMMAR_TOO_SLOW: EndReason.GRAMMAR_TOO_SLOW,
}


def check_result(result: StepResult, plan: PlanInFlight | None) -> None:
    """Raises ResultMismatchError unless the result has exactly the plan's shape."""
    if plan is None or result.step_id != plan.step_id:
        expected = "no plan is in flight" if plan is None else f"step {plan.step_id} is the oldest in flight"
        raise ResultMismatchError(f"result of step {result.step_id}, but {expected}", field="step_id")
    rows, tokens = len(plan.max_samples), len(result.tokens)
    if len(result.num_sampled) != rows:
        raise ResultMismatchError(
            f"step {plan.step_id}: {len(result.num_sampled)} rows for {rows}", field="num_sampled"
        )
    if len(result.flags) not in (0, rows):
        raise ResultMismatchError(f"step {plan.step_id}: {len(result.flags)} flags for {rows} rows", field="flags")
    _check_scores(result, rows)
    if sum(result.num_sampled) != tokens:
        raise ResultMismatchError(f"step {plan.step_id}: num_sampled does not add up to {tokens}", field="tokens")
    for column in ("logprobs", "top_tokens", "top_logprobs"):
        if len(getattr(result, column)) not in (0, tokens):
            raise ResultMismatchError(f"step {plan.step_id}: {column} has not one entry per token", field=column)
    expected_samples = plan.max_samples
    if result.flags:
        pairs = zip(plan.max_samples, result.flags, strict=True)
        expected_samples = tuple(samples if flag is OK else 0 for samples, flag in pairs)
    if result.num_sampled != expected_samples:
        place = next(
            i for i, pair in enumerate(zip(result.num_sampled, expected_samples, strict=True)) if len({*pair}) > 1
        )
        raise ResultMismatchError(
            f"step {plan.step_id}: {result.num_sampled[place]} tokens for row {place} of the plan", field="num_sampled"
        )


def _check_scores(result: StepResult, rows: int) -> None:
    scored = len(result.scored_logprobs)
    if len(result.num_scored) not in (0, rows) or sum(result.num_scored) != scored:
        raise ResultMismatchError(
            f"step {result.step_id}: num_scored must have {rows} entries that add up to {scored}", field="num_scored"
        )
    for column in ("scored_top_tokens", "scored_top_logprobs"):
        if len(getattr(result, column)) not in (0, scored):
            raise ResultMismatchError(
                f"step {result.step_id}: {column} has not one entry per scored token", field=column
            )


class Settlement:
    """One checked result on its way into its sequences. `ending` collects those that end now, and why."""

    def __init__(self, result: StepResult, plan: PlanInFlight, counters: Counters) -> None:
        self.ending: list[tuple[LiveSequence, EndReason]] = []
        self._result = result
        self._plan = plan
        self._counters = counters
        self._sequence_ids: list[int] = []
        self._dropped: set[int] = set()
        self._scores: list[PromptScores] = []
        self._scored_ends = tuple(accumulate(result.num_scored))

    def settle_decodes(self) -> None:
        """Books one token for every member of the decode batch, which has them in its columns. Those that changed their
        place or left since get theirs one by one."""
        columns, gone, tokens = self._plan.decodes, self._plan.gone, self._result.tokens
        for place in self._plan.moved.values():
            columns.sequences[place].token_ids.append(tokens[place])
            columns.sequences[place].written += 1
        self._sequence_ids += columns.sequence_ids
        num_members = len(columns.rows) - len(gone)
        self._counters.generated_tokens += num_members
        self._counters.kept_tokens += num_members
        if columns.stop_token_ids and not columns.stop_token_ids.isdisjoint(tokens):
            for place, (sequence, token) in enumerate(zip(columns.sequences, tokens, strict=False)):
                if token in sequence.spec.stop_token_ids and place not in gone:
                    self.ending.append((sequence, EndReason.STOP))
        for place in sorted(gone):
            planned = gone[place]
            if self._book(planned):
                planned.sequence.token_ids.append(tokens[place])
                self._end_if_done(planned.sequence, tokens[place])
            else:
                self._dropped.add(place)

    def settle_rows(self) -> None:
        """Books the other rows of a result without flags."""
        token_index = len(self._plan.decodes.rows)
        for place, planned in enumerate(self._plan.rows, len(self._plan.decodes.rows)):
            self.settle_row(planned, place, token_index)
            token_index += planned.samples

    def settle_row(self, planned: PlannedRow, place: int, token_index: int, flag: RowFlag = OK) -> None:
        """Books the row at this place of the plan, whose token, if it has one, is at token_index."""
        sequence, sampled = planned.sequence, planned.samples and flag is OK
        if sampled:
            self._sequence_ids.append(sequence.spec.sequence_id)
        if not self._book(planned, flag):
            if sampled:
                self._dropped.add(token_index)
            return
        if flag is not OK:
            self.ending.append((sequence, END_OF_FLAG[flag]))
            return
        if self._scored_ends:
            self._settle_scores(sequence, place)
        if sampled:
            token = self._result.tokens[token_index]
            sequence.token_ids.append(token)
            self._end_if_done(sequence, token)

    def output(self, ends: tuple[End, ...]) -> StepOutput:
        """The columns of all tokens that were kept, and the sequences that ended with them."""
        result, sequence_ids = self._result, tuple(self._sequence_ids)
        kept = [index for index in range(len(sequence_ids)) if index not in self._dropped] if self._dropped else None
        return StepOutput(
            _select(sequence_ids, kept),
            _select(result.tokens, kept),
            _select(result.logprobs, kept),
            _select(result.top_tokens, kept),
            _select(result.top_logprobs, kept),
            ends,
            tuple(self._scores),
        )

    def _settle_scores(self, sequence: LiveSequence, place: int) -> None:
        count = self._result.num_scored[place]
        if count:
            sequence.num_scored += count
            result, end = self._result, self._scored_ends[place]
            part = slice(end - count, end)
            self._scores.append(
                PromptScores(
                    sequence.spec.sequence_id,
                    result.scored_logprobs[part],
                    result.scored_top_tokens[part],
                    result.scored_top_logprobs[part],
                )
            )

    def _book(self, planned: PlannedRow, flag: RowFlag = OK) -> bool:
        """Counts a row as no longer in flight; False if nobody wants what it computed."""
        sequence = planned.sequence
        if sequence.queue is FINISHED:
            self._counters.wasted_tokens += planned.num_tokens
            return False
        sequence.num_in_flight_plans -= 1
        sequence.num_in_flight_tokens -= planned.samples
        if sequence.num_void_plans:
            sequence.num_void_plans -= 1
            self._counters.wasted_tokens += planned.num_tokens
            return False
        self._account(planned)
        self._counters.generated_tokens += planned.samples and flag is OK
        return True

    def _end_if_done(self, sequence: LiveSequence, token: int) -> None:
        if token in sequence.spec.stop_token_ids:
            self.ending.append((sequence, EndReason.STOP))
        elif len(sequence.token_ids) >= sequence.max_len:
            self.ending.append((sequence, EndReason.LENGTH))

    def _account(self, planned: PlannedRow) -> None:
        """Splits the row's tokens into those computed for the first time and those computed again."""
        sequence = planned.sequence
        end, counted = planned.start + planned.num_tokens, sequence.num_counted
        if counted <= planned.start:
            self._counters.kept_tokens += planned.num_tokens
            sequence.num_counted = end
            return
        first_time = max(0, end - counted)
        self._counters.kept_tokens += first_time
        self._counters.recomputed_tokens += planned.num_tokens - first_time
        sequence.num_counted = max(counted, end)


def _select(column: tuple[_T, ...], kept: list[int] | None) -> tuple[_T, ...]:
    """The entries at these places; the whole column for None. An empty column stays empty."""
    return column if kept is None or not column else tuple([column[index] for index in kept])
