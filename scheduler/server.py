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

from octavo.serving.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)
from scheduler import wire
from scheduler.assembly import CoreFactory, engine_config, inspected_workers, model_info, read_figures, read_stats
from scheduler.channel import SERVER_OPTIONS
from scheduler.config import SchedulerConfig
from scheduler.engine import Engine
from scheduler.frontend.admin.service import AdminServicer
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.malformed import MalformedRequestInterceptor
from scheduler.frontend.parsing.choice import ParserDefaults
from scheduler.frontend.service import GenerationServicer
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.frontend.tokenizer_service import TokenizerServicer
from scheduler.health_service import HealthReporter, StartingUp
from scheduler.inspector import Inspector
from scheduler.listen import ListenError, check_free, listen_address
from scheduler.metrics.collector import FiguresCollector
from scheduler.metrics.exposition import on_loop, serve_metrics
from scheduler.roster import Roster
from scheduler.worker_client import WorkerClient, WorkerUnavailableError

_WORKER_WAIT_S, _WORKER_POLL_S = 5.0, 0.1
_LAST_DELTAS_S = 5.0
_LAST_STATUS_S = 1.0
_DRAIN_POLL_S = 0.02
_SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (generation_pb2, "GenerationService"),
        (tokenizer_pb2, "TokenizerService"),
        (admin_pb2, "AdminService"),
    )
)
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
    server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=(MalformedRequestInterceptor(),))
    address = listen_address(config.host, config.port)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise ListenError(f"cannot listen on {address}: {error}") from error
    signals = _Signals()
    roster = Roster(config.worker)
    try:
        starting, health_reporter = StartingUp(_SERVICES), HealthReporter(server, _SERVICES)
        server.add_generic_rpc_handlers((starting,))
        reflection.enable_server_reflection((*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        await server.start()
        log.info("listening", host=config.host, port=port)
        first = await _unless(signals.drain, _first_worker(roster))
        if first is None:
            return 0
        address, capacity = first
        model = model_info(config, capacity, tokenizer)
        with contextlib.ExitStack() as cleanup:
            engine = Engine(
                engine_config(config, model.max_model_len),
                capacity.config_digest,
                cleanup.enter_context(CoreFactory(config)),
                on_health=health_reporter.set,
            )
            engine.join(address, capacity)
            frontend = Frontend(
                tokenizer=tokenizer,
                model=model,
                send=engine.send,
                why_unavailable=lambda: engine.why_not_connected,
                max_preparing=config.max_num_waiting,
                parsers=ParserDefaults(tool_call=config.tool_call_parser, reasoning=config.reasoning_parser),
            )
            read = on_loop(lambda: read_figures(engine, frontend.metrics()))
            collector = FiguresCollector(model.served_model_name, read)
            cleanup.enter_context(serve_metrics(config.host, config.metrics_port, collector))
            _add_services(server, engine, frontend, log_prompts=config.log_prompts)
            starting.ready = True
            log.info("serving", model=model.served_model_name)
            running = asyncio.create_task(_run(engine, roster, address, frontend))
            await _unless(signals.drain, asyncio.shield(running))
            health_reporter.drain()
            return await _drain(config, server, engine, frontend, running, signals)
    finally:
        await server.stop(None)


async def _run(engine: Engine, roster: Roster, first: str, frontend: Frontend) -> None:
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


def _add_services(server: grpc.aio.Server, engine: Engine, frontend: Frontend, *, log_prompts: bool) -> None:
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(
        GenerationServicer(frontend, log_prompts=log_prompts), server
    )
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(TokenizerServicer(frontend), server)
    inspector = Inspector(lambda: inspected_workers(engine), frontend.requests)
    admin = AdminServicer(lambda: read_stats(engine), inspector, frontend, engine.steps)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)


async def _drain(
    config: SchedulerConfig,
    server: grpc.aio.Server,
    engine: Engine,
    frontend: Frontend,
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
    lost = frontend.shut_down()
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
