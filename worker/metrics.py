"""Prometheus metrics of the worker, over HTTP on a thread of its own. Steps count in plain attributes; everything else
is read at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.listen import ListenError, check_free, listen_address

log = structlog.get_logger()


@dataclass(slots=True)
class StepCounters:
    """Only grow. tokens: positions computed, sampled_tokens: drawn. execute_ns: time of the steps, copy_ns: the part of
    it that block copies took. failures: steps that raised. sessions: Execute streams that were opened."""

    steps: int = 0
    tokens: int = 0
    sampled_tokens: int = 0
    execute_ns: int = 0
    copy_ns: int = 0
    failures: int = 0
    sessions: int = 0


_COUNTERS: Final[tuple[tuple[str, str, Callable[[StepCounters], float]], ...]] = (
    ("octavo:worker_steps", "Steps executed.", lambda c: c.steps),
    ("octavo:worker_computed_tokens", "Token positions computed.", lambda c: c.tokens),
    ("octavo:worker_sampled_tokens", "Tokens sampled.", lambda c: c.sampled_tokens),
    ("octavo:worker_step_seconds", "Time in steps.", lambda c: c.execute_ns / 1e9),
    ("octavo:worker_copy_seconds", "Time of block copies within steps.", lambda c: c.copy_ns / 1e9),
    ("octavo:worker_step_failures", "Steps that failed.", lambda c: c.failures),
    ("octavo:worker_sessions", "Execute streams opened.", lambda c: c.sessions),
)


class StepCollector(Collector):
    """loaded: whether the model is. Both are read from the scraping thread."""

    def __init__(self, counters: StepCounters, loaded: Callable[[], bool]) -> None:
        self._counters = counters
        self._loaded = loaded

    def collect(self) -> Iterator[Metric]:
        """One family per metric, without labels: a worker is one group."""
        for name, text, value in _COUNTERS:
            yield CounterMetricFamily(name, text, value=value(self._counters))
        yield GaugeMetricFamily("octavo:worker_model_loaded", "Whether the model is loaded.", value=self._loaded())


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
