"""Metrics over HTTP, on a thread of its own: a scrape takes the figures from the event loop in one look between two
turns, and turns them into text beside it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.registry import Collector

from scheduler.listen import ListenError, check_free, listen_address

_T = TypeVar("_T")
# Longer than any turn of a healthy event loop, shorter than Prometheus' patience of 10 s.
_LOOP_PATIENCE_S: Final = 5.0

log = structlog.get_logger()


def on_loop(read: Callable[[], _T]) -> Callable[[], _T]:
    """A function for other threads that has `read` called on the running event loop. It raises TimeoutError if that
    does not get to it: a scrape then fails, as it should."""
    loop = asyncio.get_running_loop()

    async def call() -> _T:
        return read()

    def from_thread() -> _T:
        waiting: concurrent.futures.Future[_T] = asyncio.run_coroutine_threadsafe(call(), loop)
        return waiting.result(_LOOP_PATIENCE_S)

    return from_thread


@contextmanager
def serve_metrics(host: str, port: int | None, collector: Collector) -> Iterator[None]:
    """Serves /metrics until the block is left; not at all for the port None. Raises ListenError."""
    if port is None:
        yield
        return
    check_free(host, port, flag="--metrics-port")
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ListenError(f"cannot listen on {listen_address(host, port)}: {error.strerror}") from error
    log.info("metrics", host=host, port=server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
