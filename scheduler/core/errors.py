"""Domain errors of the core. Whatever raises one has changed nothing."""

from __future__ import annotations


class SchedulerError(Exception):
    """Base of what the core refuses. `field`, `value` and `limit` say which input, what it was and what is allowed."""

    def __init__(self, message: str, *, field: str = "", value: object = "", limit: object = "") -> None:
        super().__init__(message)
        self.field = field
        self.value = value
        self.limit = limit


class InvalidSequenceError(SchedulerError):
    """The sequence contradicts itself: an empty prompt, max_tokens below 1."""


class DuplicateSequenceError(SchedulerError):
    """A live sequence has this id."""


class NeverFitsError(SchedulerError):
    """The sequence needs more blocks than the pool has, however long it waits."""


class QueueFullError(SchedulerError):
    """The waiting queue is at its limit; trying later may help."""


class ResultMismatchError(SchedulerError):
    """A worker's result does not answer the oldest plan in flight. The worker cannot be trusted any more."""
