"""What docs/debugging.md looks at: a scheduler and a worker with few blocks, and three requests of different priority.

`bulk` (priority 5) and `report` run until `urgent` (priority -1) comes, whose prompt does not fit beside both. So bulk
is preempted and waits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clients import Stats
from tests.docs.console import Command
from tests.integration.harness import Cluster, cluster
from tests.integration.processes import free_port

NUM_BLOCKS = 300
_SHIM = f"""#!{sys.executable}
from tests.docs.grpcurl import main
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The services, and the tools that the page's commands call. ports: the page's to the real ones."""

    services: Cluster
    ports: dict[str, int]
    tools: Path

    def run(self, command: Command) -> subprocess.CompletedProcess[str]:
        """Runs a command of the page."""
        text = command.text
        for documented, real in self.ports.items():
            text = text.replace(f"localhost:{documented}", f"localhost:{real}")
        path = os.pathsep.join([str(self.tools), os.environ["PATH"]])
        # The tool is addressed directly: a proxy could not reach a loopback address.
        environment = {**os.environ, "PATH": path, "PYTHONPATH": os.getcwd(), "NO_PROXY": "*", "no_proxy": "*"}
        return subprocess.run(
            ["sh", "-c", text], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def shown(self, output: str) -> str:
        """An output with the page's ports."""
        for documented, real in self.ports.items():
            output = output.replace(f":{real}", f":{documented}")
        return output

    @contextlib.contextmanager
    def crowd(self, prompt_tokens: dict[str, int], max_tokens: int) -> Iterator[None]:
        """The three requests, once bulk has been preempted."""
        server = self.services
        streams = []
        try:
            for name, priority, tenant in (("report", 0, "sales"), ("bulk", 5, "batch"), ("urgent", -1, "sales")):
                stream = server.generate(
                    token_ids=[100] * prompt_tokens[name],
                    request_id=name,
                    priority=priority,
                    tenant=tenant,
                    cache_salt=name,
                    max_tokens=max_tokens,
                    ignore_eos=True,
                )
                streams.append(stream)
                next(stream)

            def bulk_waits(stats: Stats) -> bool:
                return (stats.queues.running, stats.queues.waiting) == (2, 1)

            server.wait_for(bulk_waits, "bulk is preempted")
            yield
        finally:
            for stream in streams:
                stream.close()


@contextlib.contextmanager
def scene(
    model: Path, folder: Path, *, tools: Path | None = None, worker_args: tuple[str, ...] = ()
) -> Iterator[Scene]:
    """The services. tools: a folder with grpcurl; None: one on PATH, or in its place a shim that calls buf."""
    metrics, worker_metrics = free_port(), free_port()
    if tools is None:
        tools = folder / "tools"
        tools.mkdir()
        if shutil.which("grpcurl") is None:
            (tools / "grpcurl").write_text(_SHIM)
            (tools / "grpcurl").chmod(0o755)
    with cluster(
        model,
        folder,
        worker_args=[
            *("--num-gpu-blocks-override", str(NUM_BLOCKS), "--swap-space", "0"),
            *("--metrics-port", str(worker_metrics)),
            *worker_args,
        ],
        scheduler_args=["--max-num-seqs", "4", "--metrics-port", str(metrics)],
    ) as services:
        ports = {
            "50051": services.scheduler.port,
            "50052": services.worker.port,
            "9090": metrics,
            "9091": worker_metrics,
        }
        yield Scene(services=services, ports=ports, tools=tools)
