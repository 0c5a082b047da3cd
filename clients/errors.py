"""What a call to the server raises. Every failed call raises one of these; nothing of gRPC leaks to callers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of the request that the server refused, and why (the value and the limit are in the description)."""

    field: str
    description: str


class OctavoError(Exception):
    """A failed call.

    code: the gRPC status code.
    message: the server's one sentence.
    violations: the refused fields, when the request was invalid.
    reason: a stable name of the error for programs (google.rpc.ErrorInfo), or "".
    retry_after: seconds after which another try may succeed (google.rpc.RetryInfo), or None.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        violations: Sequence[Violation] = (),
        reason: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.violations = tuple(violations)
        self.reason = reason
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class InvalidRequestError(OctavoError):
    """The request contradicts itself or a limit; the same request fails again."""


class NotFoundError(OctavoError):
    """The server does not serve the model that was asked for."""


class AlreadyExistsError(OctavoError):
    """A live request has this request id."""


class ResourceExhaustedError(OctavoError):
    """The server's queue is full, and `retry_after` says when to try again; or, without it, the request took more than
    it may: a message that is too large, a grammar that is too slow, a KV cache that is too small."""


class DeadlineError(OctavoError):
    """The call's timeout passed before the end."""


class UnavailableError(OctavoError):
    """The server cannot be reached, has no worker, or is shutting down."""


class InternalError(OctavoError):
    """The server failed, for example on non-finite logits."""


_CLASSES: dict[grpc.StatusCode, type[OctavoError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.INTERNAL: InternalError,
}


def error_class(code: grpc.StatusCode) -> type[OctavoError]:
    """The exception that stands for a status code; codes without one of their own are plain OctavoErrors."""
    return _CLASSES.get(code, OctavoError)
