"""Errors as the statuses that end calls, with google.rpc details."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from structlog.typing import FilteringBoundLogger

from scheduler.frontend.errors import ERROR_DOMAIN, INTERNAL, RequestError, Status, status_of

_LOG = structlog.get_logger(__name__)
# A status travels in HTTP/2 headers, of which receivers take 8 KiB by default.
MAX_MESSAGE_BYTES: Final = 1024
_MAX_DESCRIPTION_BYTES: Final = 160
_MAX_VIOLATIONS: Final = 24

_Servicer = TypeVar("_Servicer")
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


def with_status(
    method: Callable[[_Servicer, _Request, _Context], Awaitable[_Answer]],
) -> Callable[[_Servicer, _Request, _Context], Coroutine[Any, Any, _Answer]]:
    """Of a servicer's method: whatever it raises ends the call with a status."""

    @functools.wraps(method)
    async def call(self: _Servicer, request: _Request, context: _Context) -> _Answer:
        try:
            return await method(self, request, context)
        except Exception as error:
            rpc = rpc_status_of(error, _LOG.bind(method=method.__name__))
        return await abort(context, rpc)

    return call


def rpc_status_of(error: Exception, log: FilteringBoundLogger) -> status_pb2.Status:
    """The status that ends a call; a defect of the server is logged with its trace."""
    if isinstance(error, RequestError):
        return to_rpc_status(error, status_of(error))
    log.error("request failed on a defect of the server", exc_info=error)
    return to_rpc_status(RequestError("internal error; the server's log has its trace"), INTERNAL)


def to_rpc_status(error: RequestError, status: Status) -> status_pb2.Status:
    """The status of an error, with BadRequest, ErrorInfo and RetryInfo where they apply."""
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=status.reason, domain=ERROR_DOMAIN, metadata=error.metadata())
    ]
    if error.violations:
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(
                        field=violation.field, description=cut(violation.description, _MAX_DESCRIPTION_BYTES)
                    )
                    for violation in error.violations[:_MAX_VIOLATIONS]
                ]
            )
        )
    if status.retry_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(status.retry_seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = [any_pb2.Any() for _ in details]
    for box, detail in zip(packed, details, strict=True):
        box.Pack(detail)
    return status_pb2.Status(code=status.code.value[0], message=cut(str(error), MAX_MESSAGE_BYTES), details=packed)


async def abort(context: grpc.aio.ServicerContext[Any, Any], rpc: status_pb2.Status) -> NoReturn:
    """Ends a call with a status and its details."""
    status = rpc_status.to_status(rpc)
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort does not return")


def cut(text: str, num_bytes: int) -> str:
    """The text, or as much of it as has room in so many bytes."""
    data = text.encode()
    return text if len(data) <= num_bytes else data[: num_bytes - 3].decode(errors="ignore") + "..."
