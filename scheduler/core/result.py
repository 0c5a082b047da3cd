"""What comes back from a step: the worker's result, and what the core makes of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple


class RowFlag(enum.IntEnum):
    """What went wrong with a row of a step."""

    OK = 0
    NON_FINITE = 1
    DEAD_END = 2
    GRAMMAR_TOO_SLOW = 3


OK: Final = RowFlag.OK
"""Looked up for every row: faster than by the class."""


class EndReason(enum.Enum):
    """Why a sequence is no more."""

    STOP = "stop"
    """EOS or a stop token id was generated."""
    LENGTH = "length"
    """max_tokens was reached."""
    ABORT = "abort"
    """The caller went away."""
    DEADLINE = "deadline"
    """The deadline passed, in a queue or while running."""
    NON_FINITE = "non_finite"
    """The model gave logits that are not finite."""
    DEAD_END = "dead_end"
    """What the request allows leaves no token to draw."""
    GRAMMAR_TOO_SLOW = "grammar_too_slow"
    """Its structured output took the worker more time than it may."""
    CAPACITY = "capacity"
    """The sequence cannot fit into the pool of the worker that is there now."""
    KILLED_WORKER = "killed_worker"
    """Workers died with the sequence in flight, the last one while it ran alone."""
    WORKER_LOST = "worker_lost"
    """No worker came back within the grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A worker's answer to a plan; columns are in the order of the plan's scheduled rows.

    epoch: of the stream it came on. step_id: of the plan.
    num_sampled: tokens per row. tokens: those, row by row.
    logprobs: one per token, or empty if no row asked.
    top_tokens, top_logprobs: per token the most likely ones, or empty if no row asked.
    flags: one per row, or empty if all are well.
    execute_ns: time the step took on the worker. copy_ns: the part of it that block copies took, 0 if there were none.
    num_scored: prompt tokens per row whose logprobs follow, or empty if no row has any.
    scored_logprobs: those, row by row. scored_top_tokens, scored_top_logprobs: as top_tokens, per scored token.
    """

    epoch: int
    step_id: int
    num_sampled: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    top_tokens: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    flags: tuple[RowFlag, ...] = ()
    execute_ns: int = 0
    copy_ns: int = 0
    num_scored: tuple[int, ...] = ()
    scored_logprobs: tuple[float, ...] = ()
    scored_top_tokens: tuple[tuple[int, ...], ...] = ()
    scored_top_logprobs: tuple[tuple[float, ...], ...] = ()


class PromptScores(NamedTuple):
    """Logprobs of consecutive prompt tokens of one sequence; they follow those that it had before, from the prompt's
    second token on. top_tokens, top_logprobs: as in StepResult."""

    sequence_id: int
    logprobs: tuple[float, ...]
    top_tokens: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()


class End(NamedTuple):
    """The end of a sequence. num_output_tokens counts all tokens delivered, in this step and before."""

    sequence_id: int
    reason: EndReason
    num_output_tokens: int
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Columns of tokens that were kept, and the sequences that ended.

    logprobs is empty or has an entry per token (NaN where it was not asked for); top_tokens and top_logprobs are empty
    or have a tuple per token. scores: new logprobs of prompts.
    """

    sequence_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_tokens: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    ends: tuple[End, ...] = ()
    scores: tuple[PromptScores, ...] = ()
