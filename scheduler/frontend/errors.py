"""What the front end refuses or reports, and the one table that says which gRPC status each is.

Two families. `ModelLoadError` ends the start of the process and never reaches a caller. `RequestError` ends one
request; `status_of` looks it up in the table, `service.py` turns the row into a status with google.rpc details.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import grpc

from scheduler.core.errors import (
    DuplicateSequenceError,
    InvalidSequenceError,
    NeverFitsError,
    QueueFullError,
)
from scheduler.core.result import EndReason
from scheduler.messages import Rejected

ERROR_DOMAIN: Final = "octavo"
_MAX_METADATA_CHARACTERS: Final = 256  # it travels in the headers, with the rest of the status


class ModelLoadError(Exception):
    """The model's tokenizer or configuration cannot be loaded."""


class ModelNotFoundError(ModelLoadError):
    """There is no such model; the message names what was tried."""


class UnsupportedModelError(ModelLoadError):
    """The files are there and cannot be served; the message names what is supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A field of a request that breaks a rule. field: its path in the request, for example `sampling_params.top_p`."""

    field: str
    description: str


class RequestError(Exception):
    """Base of what ends one request with an error status."""

    violations: tuple[Violation, ...] = ()

    def metadata(self) -> dict[str, str]:
        """What a program may want to read without parsing the message; becomes the metadata of ErrorInfo."""
        return {}


class InvalidRequestError(RequestError):
    """Fields of the request break rules; all of them are reported together."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("; ".join(f"{violation.field}: {violation.description}" for violation in violations))
        self.violations = violations


class MalformedRequestError(RequestError):
    """The bytes are not those of the message that the method takes."""

    def __init__(self, method: str, why: Exception) -> None:
        super().__init__(f"request: the bytes are not a message that {method} takes: {why}")


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""

    def __init__(self, *, model: str, served: str) -> None:
        super().__init__(f"model: {model!r} is not served here, {served!r} is")


class DuplicateRequestError(RequestError):
    """A live request has this id."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request_id: {request_id!r} is in use by a live request; use another, or wait until it ends")


class UnknownRequestError(RequestError):
    """No live request has this id."""

    def __init__(self, request_id: str, index: int | None = None) -> None:
        what = "a live request" if index is None else f"a live request with a live sequence of index {index}"
        super().__init__(f"request_id: {request_id!r} is not {what}; it never came, or it has ended")
        self._request_id = request_id

    def metadata(self) -> dict[str, str]:
        return {"field": "request_id", "value": self._request_id[:_MAX_METADATA_CHARACTERS]}


class StartingError(RequestError):
    """The server knows no limits yet: a worker says what it can do once it has loaded its model."""

    def __init__(self) -> None:
        super().__init__("no worker has loaded its model yet; try again later")


class DrainingError(RequestError):
    """The server takes no new requests before it stops."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down and takes no new requests")


class ShutdownError(RequestError):
    """The server stops before the request is done."""

    def __init__(self) -> None:
        super().__init__("the server stopped before the request was done; it may be sent to another one")


class BusyError(RequestError):
    """Too many requests are being tokenised."""

    def __init__(self, num_preparing: int, limit: int) -> None:
        super().__init__(f"{num_preparing} requests are being tokenised, limit {limit} (--max-num-waiting)")


class RejectedError(RequestError):
    """The core refused the request. prompt_field: the field that the prompt came in."""

    def __init__(self, rejected: Rejected, *, prompt_field: str) -> None:
        super().__init__(rejected.message)
        self.kind = rejected.kind
        self._rejected = rejected
        # Where the core's fields are in a request.
        public = {"prompt": prompt_field, "max_tokens": "sampling_params.max_tokens", "n": "sampling_params.n"}
        self._field = public.get(rejected.field, rejected.field)
        if rejected.kind in _FAULTS_OF_THE_REQUEST:
            self.violations = (Violation(field=self._field, description=rejected.message),)

    def metadata(self) -> dict[str, str]:
        pairs = {"field": self._field, "value": self._rejected.value, "limit": self._rejected.limit}
        return {key: value for key, value in pairs.items() if value}


class SequenceEndedError(RequestError):
    """The sequence ended otherwise than by a stop token or its length. why: what is known of the cause, or empty."""

    def __init__(self, reason: EndReason, num_output_tokens: int, why: str = "") -> None:
        cause = f": {why}" if why else ""
        super().__init__(f"{_END_MESSAGES[reason]}{cause} (after {num_output_tokens} tokens)")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Status:
    """Row of the table. reason: stable, for ErrorInfo. retry_seconds: for RetryInfo; None if trying again is vain."""

    code: grpc.StatusCode
    reason: str
    retry_seconds: float | None = None


_FAULTS_OF_THE_REQUEST: Final = frozenset({InvalidSequenceError.__name__, NeverFitsError.__name__})

_END_MESSAGES: Final[dict[EndReason, str]] = {
    EndReason.ABORT: "the request was aborted",
    EndReason.DEADLINE: "the deadline passed before the generation was complete",
    EndReason.NON_FINITE: "the model gave logits that are not finite",
    EndReason.DEAD_END: "allowed_token_ids, structured_output, bad_words and min_tokens leave no token to go on with",
    EndReason.GRAMMAR_TOO_SLOW: "structured_output took more than 5 ms of the worker for one token",
    EndReason.CAPACITY: "the sequence no longer fits into the KV cache of the worker",
    EndReason.KILLED_WORKER: "workers died while the request was computed, the last one with no other request on it",
    EndReason.WORKER_LOST: "the worker was lost and none came back in time",
}

# Keys: the names of error classes, ours and the core's (the latter arrive as `Rejected.kind`), and reasons of an end.
_TABLE: Final[dict[str | EndReason, Status]] = {
    InvalidRequestError.__name__: Status(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    InvalidSequenceError.__name__: Status(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    NeverFitsError.__name__: Status(grpc.StatusCode.INVALID_ARGUMENT, "NEVER_FITS"),
    MalformedRequestError.__name__: Status(grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    UnknownModelError.__name__: Status(grpc.StatusCode.NOT_FOUND, "MODEL_NOT_SERVED"),
    UnknownRequestError.__name__: Status(grpc.StatusCode.NOT_FOUND, "REQUEST_NOT_LIVE"),
    DuplicateRequestError.__name__: Status(grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_IN_USE"),
    DuplicateSequenceError.__name__: Status(grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_IN_USE"),
    QueueFullError.__name__: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", 1.0),
    BusyError.__name__: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", 1.0),
    StartingError.__name__: Status(grpc.StatusCode.UNAVAILABLE, "STARTING", 1.0),
    ShutdownError.__name__: Status(grpc.StatusCode.UNAVAILABLE, "SHUTDOWN", 1.0),
    DrainingError.__name__: Status(grpc.StatusCode.UNAVAILABLE, "DRAINING", 1.0),
    EndReason.ABORT: Status(grpc.StatusCode.CANCELLED, "ABORTED"),
    EndReason.DEADLINE: Status(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"),
    EndReason.NON_FINITE: Status(grpc.StatusCode.INTERNAL, "NON_FINITE_LOGITS"),
    EndReason.DEAD_END: Status(grpc.StatusCode.FAILED_PRECONDITION, "DEAD_END"),
    EndReason.GRAMMAR_TOO_SLOW: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "GRAMMAR_TOO_SLOW"),
    EndReason.CAPACITY: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "CAPACITY"),
    EndReason.KILLED_WORKER: Status(grpc.StatusCode.INTERNAL, "KILLED_WORKER"),
    EndReason.WORKER_LOST: Status(grpc.StatusCode.UNAVAILABLE, "WORKER_LOST", 1.0),
}
INTERNAL: Final = Status(grpc.StatusCode.INTERNAL, "INTERNAL")


def status_of(error: RequestError) -> Status:
    """The row of an error; INTERNAL for one that has none."""
    match error:
        case RejectedError():
            return _TABLE.get(error.kind, INTERNAL)
        case SequenceEndedError():
            return _TABLE.get(error.reason, INTERNAL)
        case _:
            return _TABLE.get(type(error).__name__, INTERNAL)
