"""The narrow interface between front ends and the engine.

Down go `Add`, `Cancel` and `Finish`, up comes one `StepUpdate` per step: plain, frozen, picklable values, so that a
front end can be a thread, a task or another process. Times are nanoseconds on the engine's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from scheduler.core.result import End, PromptScores
from scheduler.core.sequence import SequenceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """The sequences of one request, by their index; they are accepted all or none. arrival_ns: when it came."""

    specs: tuple[SequenceSpec, ...]
    request_id: str = ""
    arrival_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The caller of a sequence went away. Unknown and ended ids are ignored."""

    sequence_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A stop string ended a sequence; num_output_tokens: up to the token that completed it. Unknown and ended ids are
    ignored: a sequence may have reached its length with that token."""

    sequence_id: int
    num_output_tokens: int


Message: TypeAlias = Add | Cancel | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A sequence was admitted for the first time, with `cached_tokens` of its prompt from the prefix cache."""

    sequence_id: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The sequences of an Add were refused by the core and hold nothing.

    sequence_id: of the first one; it stands for all. kind: class name of the domain error (`scheduler.core.errors`).
    field, value, limit: what was wrong with what.
    """

    sequence_id: int
    kind: str
    message: str
    field: str
    value: str
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUpdate:
    """All that one step, or one turn of the engine without a step, has for a front end.

    Columns sequence_ids .. top_logprobs, and scores, as in `scheduler.core.result.StepOutput`; at most one token per
    sequence.
    """

    now_ns: int
    started: tuple[Started, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    sequence_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_tokens: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    ends: tuple[End, ...] = ()
    scores: tuple[PromptScores, ...] = ()
