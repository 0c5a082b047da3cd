"""Reading a worker's result against the plan that it answers."""

from __future__ import annotations

from scheduler.core.counters import Counters
from scheduler.core.errors import ResultMismatchError
from scheduler.core.live import Queue
from scheduler.core.plan_builder import PlanInFlight, PlannedRow
from scheduler.core.result import End, EndReason, RowFlag, StepOutput, StepResult


def check_result(result: StepResult, plan: PlanInFlight | None) -> None:
    """Raises ResultMismatchError unless the result has exactly the plan's shape."""
    if plan is None or result.step_id != plan.step_id:
        expected = "no plan is in flight" if plan is None else f"step {plan.step_id} is the oldest in flight"
        raise ResultMismatchError(f"result of step {result.step_id}, but {expected}", field="step_id")
    rows, tokens = len(plan.rows), len(result.tokens)
    if len(result.num_sampled) != rows:
        raise ResultMismatchError(
            f"step {plan.step_id}: {len(result.num_sampled)} rows for {rows}", field="num_sampled"
        )
    if len(result.flags) not in (0, rows):
        raise ResultMismatchError(f"step {plan.step_id}: {len(result.flags)} flags for {rows} rows", field="flags")
    if sum(result.num_sampled) != tokens:
        raise ResultMismatchError(f"step {plan.step_id}: num_sampled does not add up to {tokens}", field="tokens")
    for column in ("logprobs", "top_tokens", "top_logprobs"):
        if len(getattr(result, column)) not in (0, tokens):
            raise ResultMismatchError(f"step {plan.step_id}: {column} has not one entry per token", field=column)
    flags = result.flags or (RowFlag.OK,) * rows
    for planned, sampled, flag in zip(plan.rows, result.num_sampled, flags, strict=True):
        if sampled != (planned.samples and flag is RowFlag.OK):
            raise ResultMismatchError(
                f"step {plan.step_id}: {sampled} tokens for sequence {planned.sequence.spec.sequence_id}",
                field="num_sampled",
            )


class Settlement:
    """One checked result on its way into its sequences. Rows are settled in the order of the plan."""

    def __init__(self, result: StepResult, counters: Counters) -> None:
        self.ends: list[End] = []
        self._result = result
        self._counters = counters
        self._row = 0
        self._token = 0
        self._kept: list[int] = []
        self._sequence_ids: list[int] = []

    def settle(self, planned: PlannedRow) -> EndReason | None:
        """Books one row; returns why its sequence ends now, if it does."""
        result, sequence = self._result, planned.sequence
        flag = result.flags[self._row] if result.flags else RowFlag.OK
        self._row += 1
        token_index = self._token
        sampled = planned.samples and flag is RowFlag.OK
        self._token += sampled
        if sequence.queue is Queue.FINISHED:
            self._counters.wasted_tokens += planned.num_tokens
            return None
        sequence.num_in_flight_plans -= 1
        sequence.num_in_flight_tokens -= planned.samples
        if sequence.num_void_plans:
            sequence.num_void_plans -= 1
            self._counters.wasted_tokens += planned.num_tokens
            return None
        self._account(planned)
        if flag is not RowFlag.OK:
            return EndReason.NON_FINITE
        if not sampled:
            return None
        token = result.tokens[token_index]
        sequence.token_ids.append(token)
        sequence.num_output += 1
        self._counters.generated_tokens += 1
        self._kept.append(token_index)
        self._sequence_ids.append(sequence.spec.sequence_id)
        if token in sequence.spec.stop_token_ids:
            return EndReason.STOP
        if sequence.num_output >= sequence.spec.max_tokens:
            return EndReason.LENGTH
        return None

    def output(self) -> StepOutput:
        """The columns of all tokens that were kept."""
        result, kept = self._result, self._kept
        return StepOutput(
            sequence_ids=tuple(self._sequence_ids),
            token_ids=tuple(result.tokens[i] for i in kept),
            logprobs=tuple(result.logprobs[i] for i in kept) if result.logprobs else (),
            top_tokens=tuple(result.top_tokens[i] for i in kept) if result.top_tokens else (),
            top_logprobs=tuple(result.top_logprobs[i] for i in kept) if result.top_logprobs else (),
            ends=tuple(self.ends),
        )

    def _account(self, planned: PlannedRow) -> None:
        """Splits the row's tokens into those computed for the first time and those computed again."""
        sequence = planned.sequence
        end = planned.start + planned.num_tokens
        first_time = max(0, end - max(planned.start, sequence.num_counted))
        self._counters.kept_tokens += first_time
        self._counters.recomputed_tokens += planned.num_tokens - first_time
        sequence.num_counted = max(sequence.num_counted, end)
