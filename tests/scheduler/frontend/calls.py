"""What the tests of the services share: waiting for a condition, and how calls fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

Failure = tuple[grpc.aio.AioRpcError, dict[str, Any]]


async def until(condition: Callable[[], bool]) -> None:
    """Waits until it holds."""
    while not condition():  # noqa: ASYNC110 - the conditions are plain values, which signal nothing
        await asyncio.sleep(0.005)


async def failure(call: Awaitable[Any]) -> Failure:
    """The error of a call and its details by the name of their type."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    details: dict[str, Any] = {}
    status = rpc_status.from_call(raised.value)  # type: ignore[arg-type]  # it is one, of grpc.aio
    if status is not None:
        for box in status.details:
            detail = getattr(error_details_pb2, box.TypeName().rsplit(".", 1)[-1])()
            assert box.Unpack(detail)
            details[type(detail).__name__] = detail
    return raised.value, details
