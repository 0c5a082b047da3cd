"""What callers are told before there is a worker."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from clients import AsyncClient, OctavoError, UnavailableError
from scheduler.frontend.server import SERVICES
from scheduler.health_service import StartingUp


def test_a_server_that_starts_says_so_and_when_to_try_again() -> None:
    async def run() -> None:
        server = grpc.aio.server()
        starting = StartingUp(SERVICES)
        server.add_generic_rpc_handlers((starting,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with AsyncClient(f"127.0.0.1:{port}") as client:
            for call in (client.complete("a"), client.model_info(), client.count_tokens("a")):
                with pytest.raises(UnavailableError) as refused:
                    await call
                assert (refused.value.reason, refused.value.retry_after) == ("STARTING", 1.0)
            starting.ready = True
            with pytest.raises(OctavoError) as unknown:
                await client.model_info()
            assert unknown.value.code is grpc.StatusCode.UNIMPLEMENTED
        await server.stop(None)

    asyncio.run(run())
