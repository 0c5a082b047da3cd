"""Between the clients' values and the messages of octavo.serving.v1.AdminService."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, TypeVar

from clients.stats import BlockStats, CounterStats, HostBlockStats, QueueStats, Stats, WorkerStats
from octavo.serving.v1 import admin_pb2, admin_pb2_grpc

AdminStub: Final = admin_pb2_grpc.AdminServiceStub

_T = TypeVar("_T", QueueStats, BlockStats, HostBlockStats, CounterStats, WorkerStats)


def stats_request() -> admin_pb2.GetStatsRequest:
    """The request of GetStats."""
    return admin_pb2.GetStatsRequest()


def stats(response: admin_pb2.GetStatsResponse) -> Stats:
    """The figures as values. The classes carry the messages' field names."""
    return Stats(
        queues=_read(QueueStats, response.queues),
        blocks=_read(BlockStats, response.blocks),
        counters=_read(CounterStats, response.counters),
        worker=_read(WorkerStats, response.worker),
        host_blocks=_read(HostBlockStats, response.host_blocks),
    )


def _read(kind: type[_T], message: Any) -> _T:
    return kind(**{field.name: getattr(message, field.name) for field in fields(kind)})
