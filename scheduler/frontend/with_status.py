"""Ends calls that answer with one message with the status of what they raise."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog

from scheduler.frontend.errors import INTERNAL, RequestError, status_of
from scheduler.frontend.service import abort, to_rpc_status

_LOG = structlog.get_logger(__name__)
_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])


def with_status(method: _Method) -> _Method:
    """Of a servicer's method: a RequestError becomes its status, any other error INTERNAL and a log line."""

    @functools.wraps(method)
    async def call(self: object, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except RequestError as error:
            rpc = to_rpc_status(error, status_of(error))
        except Exception:
            _LOG.exception("a call failed on a defect of the server", method=method.__name__)
            rpc = to_rpc_status(RequestError("internal error; the server's log has its trace"), INTERNAL)
        return await abort(context, rpc)

    return call  # type: ignore[return-value]
