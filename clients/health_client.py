"""Between the clients' values and the messages of grpc.health.v1."""

from __future__ import annotations

from typing import Any, Final

from grpc_health.v1 import health_pb2, health_pb2_grpc

HealthStub: Final[Any] = health_pb2_grpc.HealthStub


def health_request() -> health_pb2.HealthCheckRequest:
    """Asks for the server as a whole."""
    return health_pb2.HealthCheckRequest(service="")


def is_serving(response: health_pb2.HealthCheckResponse) -> bool:
    """Whether the server makes progress and takes requests."""
    return response.status == health_pb2.HealthCheckResponse.SERVING
