"""Reads a failed call's status and its google.rpc details into an OctavoError."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from clients.errors import OctavoError, Violation, error_class

_DETAILS_KEY = "grpc-status-details-bin"


def octavo_error(error: grpc.RpcError) -> OctavoError:
    """The exception for a failed call, of a synchronous or an asynchronous stub: both have these three methods."""
    call: Any = error
    code: grpc.StatusCode = call.code()
    violations: list[Violation] = []
    reason = ""
    retry_after: float | None = None
    for detail in _status(call.trailing_metadata() or ()).details:
        bad_request = error_details_pb2.BadRequest()
        info = error_details_pb2.ErrorInfo()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(bad_request):
            violations += [Violation(v.field, v.description) for v in bad_request.field_violations]
        elif detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    return error_class(code)(code, call.details() or "", violations=violations, reason=reason, retry_after=retry_after)


def _status(metadata: Iterable[tuple[str, str | bytes]]) -> Any:
    """The google.rpc.Status among the trailing metadata, or an empty one."""
    for key, value in metadata:
        if key == _DETAILS_KEY:
            return status_pb2.Status.FromString(value)
    return status_pb2.Status()
