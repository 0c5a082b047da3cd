"""A scheduler and a worker as real processes over loopback gRPC, and a client of them.

The one place that knows the services' command lines. Every call of `Cluster.generate` carries a deadline, so that a
hang is a failed test with a name and not a stuck run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from clients import Client, Completion, DeltaStream, Stats
from clients.request import RequestKeywords
from clients.results import join
from tests.integration.processes import WAIT_CAP_S, ServiceProcess, free_port, wait_until
from tests.integration.withholding_proxy import WithholdingProxy

EXACT = ("--exact", "--dtype", "float32")
"""Worker arguments under which a sequence's tokens and logprobs do not depend on what else runs."""

CALL_CAP_S = 120.0


def collect(stream: DeltaStream) -> Completion:
    """The whole answer of a stream, to its end."""
    deltas = list(stream)
    return join(stream.request_id, deltas, stream.usage, stream.prompt_token_ids, stream.prompt_logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The processes and a client. proxy: what stands between the two, if the test asked for it."""

    workers: tuple[ServiceProcess, ...]
    scheduler: ServiceProcess
    client: Client
    proxy: WithholdingProxy | None

    @property
    def worker(self) -> ServiceProcess:
        """The only one, or the first."""
        return self.workers[0]

    def generate(
        self, prompt: str | None = None, *, timeout: float = CALL_CAP_S, **keywords: Unpack[RequestKeywords]
    ) -> DeltaStream:
        """Submits a request now; greedy unless told otherwise."""
        if "temperature" not in keywords:
            keywords["temperature"] = 0.0
        return self.client.generate(prompt, timeout=timeout, **keywords)

    def complete(
        self, prompt: str | None = None, *, timeout: float = CALL_CAP_S, **keywords: Unpack[RequestKeywords]
    ) -> Completion:
        """Submits a request and waits for its end."""
        return collect(self.generate(prompt, timeout=timeout, **keywords))

    def stats(self) -> Stats:
        """Queues, blocks and counters."""
        return self.client.stats(timeout=10)

    def wait_for(self, condition: Callable[[Stats], bool], what: str) -> Stats:
        """Polls the stats until the condition holds."""
        seen: list[Stats] = []

        def holds() -> bool:
            seen[:] = [self.stats()]
            return condition(seen[0])

        try:
            wait_until(holds, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; last seen: {seen[0]}") from None
        return seen[0]

    @contextlib.contextmanager
    def frozen_worker(self) -> Iterator[None]:
        """Between enter and exit the worker is stopped (SIGSTOP), and no step gets on."""
        self.worker.pause()
        try:
            yield
        finally:
            self.worker.resume()

    def wait_connected(self) -> Stats:
        """Polls until all workers have a session."""
        return self.wait_for(
            lambda stats: len(stats.workers) == len(self.workers) and all(one.connected for one in stats.workers),
            "all workers are connected",
        )

    def wait_empty(self) -> Stats:
        """Polls until nothing runs or waits and no block is used; checks that none was lost."""

        def empty(stats: Stats) -> bool:
            return not (stats.queues.running or stats.queues.waiting or stats.blocks.referenced)

        stats = self.wait_for(empty, "nothing runs, nothing waits, no block is referenced")
        assert stats.blocks.free + stats.blocks.cached == stats.blocks.total
        return stats


def worker_process(
    model: Path | str,
    logs: Path,
    args: Sequence[str] = EXACT,
    env: Mapping[str, str] | None = None,
    *,
    name: str = "worker",
    module: str = "worker",
) -> ServiceProcess:
    """A worker that is not started yet. module: what runs."""
    port = free_port()
    command = ["-m", module, "--model", str(model), "--port", str(port), *args]
    return ServiceProcess(name, command, port, logs / f"{name}.log", env)


def scheduler_process(
    model: Path | str,
    logs: Path,
    worker: str | Sequence[str],
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "scheduler"),
) -> ServiceProcess:
    """A scheduler of the worker at that address, or of several, that is not started yet. program: what the interpreter
    runs."""
    port = free_port()
    targets = [f"--worker={one}" for one in ([worker] if isinstance(worker, str) else worker)]
    # A test that freezes a worker to look around has all the time that it needs, unless it says otherwise.
    patience = "--step-timeout=600"
    command = [*program, "--model", str(model), *targets, "--port", str(port), patience, *args]
    return ServiceProcess("scheduler", command, port, logs / "scheduler.log", env)


@contextlib.contextmanager
def cluster(
    model: Path | str,
    logs: Path,
    *,
    worker_args: Sequence[str] = (),
    scheduler_args: Sequence[str] = (),
    withhold: bool = False,
    threads: int = 1,
    env: Mapping[str, str] | None = None,
    num_workers: int = 1,
    worker_module: str = "worker",
) -> Iterator[Cluster]:
    """Both services, serving. logs: a directory for their logs. withhold: put a WithholdingProxy between them.
    worker_module: what runs as a worker.

    threads: of the worker. A checkpoint of an oracle has too little to share out: on a busy machine, threads that wait
    for each other take a hundred times longer than one.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as cleanup:
        names = ["worker"] if num_workers == 1 else [f"worker{number}" for number in range(num_workers)]
        args = [*EXACT, "--threads", str(threads), *worker_args]
        workers = [worker_process(model, logs, args, env, name=name, module=worker_module) for name in names]
        for worker in workers:
            cleanup.callback(worker.kill)
            worker.start()
        proxy = cleanup.enter_context(WithholdingProxy(workers[0].address)) if withhold else None
        targets = [proxy.address] if proxy else [worker.address for worker in workers]
        scheduler = scheduler_process(model, logs, targets, scheduler_args, env)
        cleanup.callback(scheduler.kill)
        scheduler.start()
        for worker in workers:
            worker.wait_serving()
        scheduler.wait_serving()
        client = cleanup.enter_context(Client(scheduler.address))
        server = Cluster(workers=tuple(workers), scheduler=scheduler, client=client, proxy=proxy)
        server.wait_connected()
        yield server


__all__ = [
    "CALL_CAP_S",
    "EXACT",
    "WAIT_CAP_S",
    "Cluster",
    "cluster",
    "collect",
    "scheduler_process",
    "worker_process",
]
