"""Requests that are no protobuf messages: a status that says so, where gRPC would call them a defect of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from scheduler.frontend.errors import MalformedRequestError, status_of
from scheduler.frontend.statuses import abort, to_rpc_status

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class MalformedRequestInterceptor(grpc.aio.ServerInterceptor):
    """Decodes the requests of methods that take one message, in gRPC's place. Their implementations are coroutines."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler  # an unknown method, or not one message
        method, decode = handler_call_details.method, handler.request_deserializer
        implementation: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

        async def decoded(data: bytes, context: _Context) -> Any:
            try:
                request = decode(data)
            except DecodeError as why:
                error = MalformedRequestError(method, why)
                await abort(context, to_rpc_status(error, status_of(error)))
            return await implementation(request, context)

        wrap = (
            grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
        return wrap(decoded, response_serializer=handler.response_serializer)
