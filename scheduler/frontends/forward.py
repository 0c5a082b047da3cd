"""Passes calls of some services on to another server, bytes as they are, with their deadline and their status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import grpc

from scheduler.channel import FORWARD_CHANNEL_OPTIONS

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class Forwarder(grpc.GenericRpcHandler):
    """services: full names of those that `address` serves."""

    def __init__(self, address: str, services: Sequence[str]) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=FORWARD_CHANNEL_OPTIONS)
        self._prefixes = tuple(f"/{name}/" for name in services)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """None lets the next handler take the call."""
        method = handler_call_details.method
        if not method.startswith(self._prefixes):
            return None

        async def forward(requests: Any, context: _Context) -> None:
            call: Any = self._channel.stream_stream(method)(requests, timeout=context.time_remaining())
            try:
                async for response in call:
                    await context.write(response)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(forward)

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()
