"""The scheduler as a gRPC server: puts the parts together, reports health, and drains when told to stop.

The port is bound first, so that a taken one is noticed at once, and health answers from then on. Requests are served
once a worker has said what it can do, because none could be validated before.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import structlog
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from octavo.serving.v1 import admin_pb2, admin_pb2_grpc
from scheduler import wire
from scheduler.assembly import (
    CoreFactory,
    check_recording,
    engine_config,
    inspected_workers,
    model_info,
    read_figures,
    read_stats,
)
from scheduler.channel import SERVER_OPTIONS
from scheduler.collector import collect_seldom
from scheduler.config import SchedulerConfig
from scheduler.engine import Engine
from scheduler.frontend.admin.service import AdminServicer
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.malformed import MalformedRequestInterceptor
from scheduler.frontend.server import SERVICES, add_services, make_frontend
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.frontends.hub import Hub
from scheduler.health_service import HealthReporter, StartingUp
from scheduler.inspector import Inspector
from scheduler.listen import ListenError, check_free, listen_address, private_address, reserve_port
from scheduler.metrics.collector import FiguresCollector
from scheduler.metrics.exposition import on_loop, serve_metrics
from scheduler.roster import Roster
from scheduler.worker_client import WorkerClient, WorkerUnavailableError

_WORKER_WAIT_S, _WORKER_POLL_S = 5.0, 0.1
_LAST_DELTAS_S = 5.0
_LAST_STATUS_S = 1.0
_DRAIN_POLL_S = 0.02
_SERVICES = (*SERVICES, admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name)
_T = TypeVar("_T")

log = structlog.get_logger()


class _Signals:
    """SIGTERM and SIGINT: the first asks to drain, the second to stop at once."""

    def __init__(self) -> None:
        self.drain, self.stop = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.stop if self.drain.is_set() else self.drain).set()


async def serve(config: SchedulerConfig, tokenizer: Tokenizer) -> int:
    """Serves until SIGTERM or SIGINT, then drains; a second signal stops at once.

    Returns the exit code: 0 if every request that was accepted has ended, else 1. Raises ListenError, ConfigError if
    the worker and the flags do not go together, and whatever ends the engine.
    """
    check_free(config.host, config.port)
    if config.metrics_port is not None:  # its server starts once a worker has come: a model may take minutes
        check_free(config.host, config.metrics_port, flag="--metrics-port")
    check_recording(config)
    server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=(MalformedRequestInterceptor(),))
    cleanup = contextlib.ExitStack()
    port, hub = _bind_public(config, server, cleanup)
    signals = _Signals()
    roster = Roster(config.worker)
    try:
        starting, health_reporter = StartingUp(_SERVICES), HealthReporter(server, _SERVICES)
        server.add_generic_rpc_handlers((starting,))
        reflection.enable_server_reflection((*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        await server.start()
        if hub is not None:
            await hub.start()
        log.info("listening", host=config.host, port=port, frontends=config.frontends)
        first = await _unless(signals.drain, _first_worker(roster))
        if first is None:
            return 0
        address, capacity = first
        model = model_info(config, capacity, tokenizer)
        engine = Engine(
            engine_config(config, model.max_model_len),
            capacity.config_digest,
            cleanup.enter_context(CoreFactory(config)),
            on_health=health_reporter.set,
        )
        engine.join(address, capacity)

        def why() -> str:
            return engine.why_not_connected

        local = make_frontend(config, model, tokenizer, engine.send, why_unavailable=why)
        frontend = local if hub is None else hub
        if hub is not None:
            await hub.serve(model, engine.send, why_unavailable=why)
        else:
            add_services(server, local, config)
        read = on_loop(lambda: read_figures(engine, frontend.metrics()))
        collector = FiguresCollector(model.served_model_name, read)
        cleanup.enter_context(serve_metrics(config.host, config.metrics_port, collector))
        inspector = Inspector(lambda: inspected_workers(engine), frontend.requests)
        admin = AdminServicer(lambda: read_stats(engine), inspector, local, engine.steps)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
        collect_seldom()
        starting.ready = True
        log.info("serving", model=model.served_model_name)
        running = asyncio.create_task(_run(engine, roster, address, frontend))
        await _unless(signals.drain, asyncio.shield(running))
        health_reporter.drain()
        return await _drain(config, server, engine, frontend, running, signals)
    finally:
        await server.stop(None)
        cleanup.close()


async def _run(engine: Engine, roster: Roster, first: str, frontend: Frontend | Hub) -> None:
    """The engine and the workers that come and go, until cancelled or until one of the two fails."""
    follow = roster.follow((first,), engine.join, engine.leave)
    tasks = [asyncio.create_task(work) for work in (engine.run(frontend.deliver), follow)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _bind_public(
    config: SchedulerConfig, server: grpc.aio.Server, cleanup: contextlib.ExitStack
) -> tuple[int, Hub | None]:
    """The public port: the server's own, or that of the hub's front ends, which pass on to it. Raises ListenError."""
    if not config.frontends:
        return _bind(server, listen_address(config.host, config.port)), None
    port = cleanup.enter_context(reserve_port(config.host, config.port))
    engine_address = cleanup.enter_context(private_address())
    _bind(server, engine_address)
    hub = Hub(config, port, engine_address)
    cleanup.callback(hub.kill)
    return port, hub


def _bind(server: grpc.aio.Server, address: str) -> int:
    """The port. Raises ListenError."""
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise ListenError(f"cannot listen on {address}: {error}") from error


async def _drain(
    config: SchedulerConfig,
    server: grpc.aio.Server,
    engine: Engine,
    frontend: Frontend | Hub,
    running: asyncio.Task[None],
    signals: _Signals,
) -> int:
    """Refuses new requests and lets the live ones end within the grace; says which it does not."""
    log.info("draining", live=frontend.num_live, grace_s=config.drain_grace)
    frontend.drain()
    deadline = asyncio.get_running_loop().time() + config.drain_grace
    while frontend.num_live and not signals.stop.is_set() and asyncio.get_running_loop().time() < deadline:
        if running.done():
            running.result()
        await asyncio.sleep(_DRAIN_POLL_S)
    lost = await frontend.shut_down()
    for request_id in lost:
        log.error("request lost", request_id=request_id, why="second signal" if signals.stop.is_set() else "grace over")
    engine.steps.close()
    await server.stop(_LAST_STATUS_S if lost else _LAST_DELTAS_S)
    running.cancel()
    await asyncio.wait([running])
    log.info("stopped", lost=len(lost))
    return 1 if lost else 0


async def _first_worker(roster: Roster) -> tuple[str, wire.WorkerCapacity]:
    """The first worker that says what it can do. It listens before it has loaded its model, which may take minutes;
    each reason is logged once."""
    clients: dict[str, WorkerClient] = {}
    logged: dict[str, str] = {}

    async def ask(address: str) -> wire.WorkerCapacity | None:
        try:
            return await clients[address].capacity(_WORKER_WAIT_S)
        except WorkerUnavailableError as error:
            if str(error) != logged.get(address):
                logged[address] = str(error)
                log.info("waiting for the worker", worker=address, why=str(error))
        return None

    try:
        while True:
            addresses = await roster.addresses()
            clients |= {address: WorkerClient(address) for address in addresses if address not in clients}
            asked = {asyncio.create_task(ask(address)): address for address in addresses}
            try:
                while asked:
                    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        address = asked.pop(task)
                        if (capacity := task.result()) is not None:
                            return address, capacity
            finally:
                for task in asked:
                    task.cancel()
                if asked:
                    await asyncio.wait(asked)
            await asyncio.sleep(_WORKER_POLL_S)
    finally:
        for client in clients.values():
            await client.close()


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T | None:
    """The result of `work`, or None if the event came first; then `work` is cancelled."""
    waiting, working = asyncio.create_task(event.wait()), asyncio.ensure_future(work)
    await asyncio.wait([waiting, working], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait([working])
    return None
