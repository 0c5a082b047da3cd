"""An Execute stream as the worker sees it: the rows of one scheduler, and its plans in order.

The rows live and die with the session. Plans go to the executor thread, outcomes come back to the event loop, where the
stream's handler takes them with `next_outcome`. A session ends once, for the first reason given: plans that are queued
then are dropped, and a step that is running then is finished and forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from worker.executor import Executor, post
from worker.metrics import StepCounters
from worker.runner import Runner
from worker.step import PROTOCOL_VERSION, Capacity, Limits, Open, PlanError, StepPlan, StepResult

log = structlog.get_logger()

MAX_ROWS = 1 << 16


class OpenError(Exception):
    """An Open whose fields are out of range."""


class IncompatibleError(Exception):
    """An Open that was made for another worker: its version, configuration or epoch does not fit."""


class SupersededError(Exception):
    """A stream with the same epoch or a higher one took over."""


class StepError(Exception):
    """A step failed for a reason that is not in its plan."""


class ShutdownError(Exception):
    """The worker stops."""


Outcome = tuple[StepResult, ...] | Exception | None
"""Results of a message's plans; or why the session is over; or None, which is the end that the scheduler asked for."""


class Session:
    """The rows and the plans of one stream. Made on the event loop; only `_execute` runs on the executor thread."""

    def __init__(self, open_: Open, limits: Limits, runner: Runner, executor: Executor, counters: StepCounters) -> None:
        self.epoch = open_.group_epoch
        self.limits = limits
        self._table = runner.new_table(limits)
        self._runner = runner
        self._executor = executor
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self._ended = False

    def submit(self, plans: Sequence[StepPlan]) -> None:
        """Queues plans behind those before them."""
        self._executor.submit(lambda: self._execute(plans))

    def submit_end(self) -> None:
        """Ends the session once the plans queued so far are executed."""
        self._executor.submit(lambda: self.end(None))

    def end(self, reason: Exception | None) -> None:
        """Ends the session now. From any thread."""
        if not self._ended:
            self._ended = True
            self._post(reason)

    async def next_outcome(self) -> Outcome:
        """The next results, in the order of the plans, or the end."""
        return await self._outcomes.get()

    def _execute(self, plans: Sequence[StepPlan]) -> None:
        """Steps one after the other; their results are posted together, and before the end if one fails."""
        results: list[StepResult] = []
        failure: Exception | None = None
        for plan in plans:
            if self._ended:
                return
            try:
                result = self._runner.execute(self._table, plan)
            except PlanError as error:
                failure = error
                break
            except Exception as error:  # the worker outlives a step that fails; its scheduler learns why
                self._counters.failures += 1
                log.exception("step failed", step_id=plan.step_id, epoch=self.epoch)
                failure = StepError(f"step {plan.step_id} failed: {type(error).__name__}: {error}")
                break
            self._count(plan, result)
            results.append(result)
        if results:
            self._post(tuple(results))
        if failure is not None:
            self.end(failure)

    def _count(self, plan: StepPlan, result: StepResult) -> None:
        counters = self._counters
        counters.steps += 1
        counters.tokens += int(plan.num_tokens.sum())
        counters.sampled_tokens += len(result.tokens)
        counters.execute_ns += result.execute_ns
        counters.copy_ns += result.copy_ns

    def _post(self, outcome: Outcome) -> None:
        post(self._loop, self._outcomes.put_nowait, outcome)


def check_open(open_: Open, capacity: Capacity) -> Limits:
    """The limits of a session's plans. Raises IncompatibleError or OpenError, naming field, value and limit."""
    if open_.protocol_version != PROTOCOL_VERSION:
        raise IncompatibleError(
            f"open.protocol_version is {open_.protocol_version}, this worker speaks {PROTOCOL_VERSION}"
        )
    if open_.config_digest != capacity.config_digest:
        raise IncompatibleError(
            f"open.config_digest is {open_.config_digest.hex() or 'empty'}, "
            f"this worker's is {capacity.config_digest.hex()}"
        )
    _within("num_device_blocks", open_.num_device_blocks, 1, capacity.num_device_blocks)
    _within("num_host_blocks", open_.num_host_blocks, 0, capacity.num_host_blocks)
    _within("num_rows", open_.num_rows, 1, min(MAX_ROWS, capacity.max_num_seqs), "--max-num-seqs")
    _within("max_model_len", open_.max_model_len, 1, capacity.max_model_len)
    most_tokens = capacity.max_num_batched_tokens
    _within("max_num_batched_tokens", open_.max_num_batched_tokens, 1, most_tokens, "--max-num-batched-tokens")
    return Limits(
        num_rows=open_.num_rows,
        num_device_blocks=open_.num_device_blocks,
        num_host_blocks=open_.num_host_blocks,
        block_size=capacity.block_size,
        logits_width=capacity.logits_width,
        max_model_len=open_.max_model_len,
        max_num_batched_tokens=open_.max_num_batched_tokens,
    )


def _within(name: str, value: int, low: int, high: int, flag: str | None = None) -> None:
    if not low <= value <= high:
        bound = f", which the worker's {flag} sets" if flag and value > high else ""
        raise OpenError(f"open.{name} is {value}, must be {low} to {high}{bound}")
