"""AdminService: the scheduler's figures over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import grpc

from octavo.serving.v1 import admin_pb2, admin_pb2_grpc
from scheduler.frontend.stats import Stats


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """stats: returns the current figures; called on the event loop, must not block."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    async def GetStats(  # noqa: N802 - the name is the proto's
        self, request: admin_pb2.GetStatsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> admin_pb2.GetStatsResponse:
        stats = self._stats()
        return admin_pb2.GetStatsResponse(
            queues=admin_pb2.QueueStats(**asdict(stats.queues)),
            blocks=admin_pb2.BlockStats(**asdict(stats.blocks)),
            counters=admin_pb2.CounterStats(**asdict(stats.counters)),
            worker=admin_pb2.WorkerStats(**asdict(stats.worker)),
        )
