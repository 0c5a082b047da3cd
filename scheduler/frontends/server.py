"""A front end's process: the public port, shared with others, and a channel to the engine's process.

It lives as long as the channel: when the engine's process ends, however, this one has nothing left to tell its callers.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Final

import grpc
import structlog
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from octavo.serving.v1 import admin_pb2
from scheduler.channel import SHARED_SERVER_OPTIONS
from scheduler.collector import collect_seldom
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.malformed import MalformedRequestInterceptor
from scheduler.frontend.server import SERVICES, add_services, make_frontend
from scheduler.frontend.tokenizer import Tokenizer, load_tokenizer
from scheduler.frontends.channel import Channel, ChannelError
from scheduler.frontends.forward import Forwarder
from scheduler.frontends.protocol import (
    Drain,
    Listen,
    Listening,
    Report,
    Serve,
    Serving,
    Stop,
    Stopped,
    WorkerMissing,
)
from scheduler.health_service import StartingUp
from scheduler.listen import listen_address
from scheduler.messages import StepUpdate

_ADMIN: Final = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
_REPORT_S: Final = 0.25
_DRAIN_REPORT_S: Final = 0.02
_LAST_STATUS_S: Final = 1.0
_LAST_DELTAS_S: Final = 5.0

log = structlog.get_logger()


class FrontendProcess:
    """See the module."""

    def __init__(self, channel: Channel, listen: Listen) -> None:
        self._channel = channel
        self._listen = listen
        self._server = grpc.aio.server(options=SHARED_SERVER_OPTIONS, interceptors=(MalformedRequestInterceptor(),))
        self._forwarder = Forwarder(listen.engine_address, (_ADMIN, health.SERVICE_NAME))
        self._starting = StartingUp(SERVICES)
        self._frontend: Frontend | None = None
        self._why_unavailable = ""
        self._draining = False

    async def run(self) -> None:
        """Serves until it is told to stop, or the engine's process has gone."""
        self._server.add_generic_rpc_handlers((self._starting, self._forwarder))
        names = (*SERVICES, _ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        try:
            self._server.add_insecure_port(listen_address(self._listen.config.host, self._listen.port))
        except RuntimeError as error:
            self._channel.send(Listening(error=str(error)))
            return
        await self._server.start()
        self._channel.send(Listening())
        reporting = asyncio.create_task(self._report())
        try:
            await self._obey()
        except ChannelError:
            # Nothing can be lost here that is not lost there. Callers see the connection close: UNAVAILABLE.
            os._exit(1)
        finally:
            reporting.cancel()
            await self._forwarder.close()

    async def _obey(self) -> None:
        while True:
            message = await self._channel.receive()
            match message:
                case StepUpdate() if self._frontend is not None:
                    self._frontend.deliver(message)
                case Serve():
                    config = self._listen.config
                    tokenizer = await asyncio.to_thread(load_tokenizer, config.model, config.revision)
                    self._serve(message, tokenizer)
                case WorkerMissing():
                    self._why_unavailable = message.why
                case Drain():
                    self._draining = True
                    if self._frontend is not None:
                        self._frontend.drain()
                case Stop():
                    await self._stop()
                    return

    def _serve(self, message: Serve, tokenizer: Tokenizer) -> None:
        config = self._listen.config
        self._frontend = make_frontend(
            config,
            message.model,
            tokenizer,
            self._channel.send,
            why_unavailable=lambda: self._why_unavailable,
            sequence_ids=itertools.count(self._listen.first_sequence_id),
        )
        add_services(self._server, self._frontend, config)
        collect_seldom()
        self._starting.ready = True
        self._channel.send(Serving())

    async def _report(self) -> None:
        while True:
            if self._frontend is not None:
                metrics = self._frontend.metrics()
                live = self._frontend.num_live
                self._channel.send(Report(metrics=metrics, num_live=live, draining=self._draining))
            await asyncio.sleep(_DRAIN_REPORT_S if self._draining else _REPORT_S)

    async def _stop(self) -> None:
        lost = [] if self._frontend is None else await self._frontend.shut_down()
        await self._server.stop(_LAST_STATUS_S if lost else _LAST_DELTAS_S)
        self._channel.send(Stopped(lost=tuple(lost)))
        await self._channel.flush()
        self._channel.close()
