"""The life of a worker process: listen, load, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from typing import Final, NoReturn

import structlog

from worker.assembly import load_worker
from worker.config import WorkerConfig
from worker.metrics import StepCollector, serve_metrics
from worker.server import WorkerServer

_OUT_OF_MEMORY: Final = 1

log = structlog.get_logger()


async def run_worker(config: WorkerConfig) -> bool:
    """Serves until SIGTERM or SIGINT. False if the executor thread is still busy. Raises what listening and loading do.

    The server listens before the model is loaded: a port in use shows at once, and probes see NOT_SERVING meanwhile.
    """
    start = time.monotonic()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = WorkerServer(_die_for_want_of_memory)
    cleanup = contextlib.ExitStack()
    try:
        port = await server.listen(config.host, config.port)
        collector = StepCollector(server.counters, lambda: server.loaded)
        cleanup.enter_context(serve_metrics(config.host, config.metrics_port, collector))
        log.info("loading", model=config.model, host=config.host, port=port)
        loading = asyncio.create_task(server.executor.call(lambda: load_worker(config)))
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait((loading, stop), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            gc.collect()
            gc.freeze()  # a full look for reference cycles would stop a step while it walks through all of torch
            await server.serve(loading.result())
            log.info("serving", host=config.host, port=port, seconds=round(time.monotonic() - start, 2))
            await stop
        log.info("stopping")
    finally:
        finished = await server.stop()
        cleanup.close()
    log.info("stopped")
    return finished


def _die_for_want_of_memory() -> NoReturn:
    """At once: an orderly stop takes memory, too. Nothing is lost, because the scheduler has all that it needs to go on
    with the worker that takes this one's place."""
    try:
        log.critical("out of memory", exit_code=_OUT_OF_MEMORY)
    finally:
        os._exit(_OUT_OF_MEMORY)
