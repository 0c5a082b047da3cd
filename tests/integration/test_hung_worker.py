"""A worker that stands still, or that the network hides: noticed within the step's budget, and nobody waits for ever.

The only worker stands behind a TCP proxy that can swallow everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from clients import Client, DeadlineError, UnavailableError
from clients.results import join
from tests.integration.harness import EXACT, Cluster, collect, scheduler_process, worker_process
from tests.integration.processes import wait_until
from tests.integration.tcp_proxy import TcpProxy

HASTY = ["--worker-grace", "4", "--step-timeout", "0.5", "--step-timeout-per-token", "0.01"]
PROMPT = "The worker falls silent while I am read"
OUTPUT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """A cluster and the network between its two."""

    server: Cluster
    network: TcpProxy


@pytest.fixture(scope="module")
def hidden(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hidden]:
    logs = tmp_path_factory.mktemp("hidden")
    worker = worker_process(uniform_model, logs, [*EXACT, "--threads", "1", "--num-gpu-blocks-override", "512"])
    worker.start()
    try:
        worker.wait_serving()
        with TcpProxy(worker.address) as network:
            scheduler = scheduler_process(uniform_model, logs, network.address, HASTY)
            scheduler.start()
            try:
                scheduler.wait_serving()
                with Client(scheduler.address) as client:
                    server = Cluster(workers=(worker,), scheduler=scheduler, client=client, proxy=None)
                    yield Hidden(server=server, network=network)
            finally:
                scheduler.kill()
    finally:
        worker.kill()


def silence(hidden: Hidden, how: str) -> None:
    if how == "SIGSTOP":
        hidden.server.worker.pause()
    else:
        hidden.network.swallowing = True


def sound(hidden: Hidden, how: str) -> None:
    if how == "SIGSTOP":
        hidden.server.worker.resume()
    else:
        hidden.network.swallowing = False


@pytest.mark.parametrize("how", ["SIGSTOP", "network"])
def test_health_turns_and_the_stream_goes_on_when_the_worker_is_back(hidden: Hidden, how: str) -> None:
    server = hidden.server
    undisturbed = server.complete(PROMPT, max_tokens=OUTPUT, ignore_eos=True, temperature=1, seed=4)
    stream = server.generate(PROMPT, max_tokens=OUTPUT, ignore_eos=True, temperature=1, seed=4)
    head = list(islice(stream, 5))
    silence(hidden, how)
    wait_until(lambda: not server.client.health(timeout=10), "health is NOT_SERVING")
    sound(hidden, how)
    assert join("", [*head, *stream], stream.usage).token_ids == undisturbed.token_ids
    assert server.client.health(timeout=10)
    server.wait_empty()


@pytest.mark.parametrize("how", ["SIGSTOP", "network"])
def test_calls_end_at_their_deadline_or_when_the_grace_is_over(hidden: Hidden, how: str) -> None:
    server = hidden.server
    patient = server.generate(PROMPT, max_tokens=3000, ignore_eos=True)
    hurried = server.generate(PROMPT, max_tokens=3000, ignore_eos=True, timeout=2)
    next(patient)
    next(hurried)
    silence(hidden, how)
    late = server.generate(PROMPT, max_tokens=3, timeout=1)
    for stream in (late, hurried):
        with pytest.raises(DeadlineError):
            collect(stream)
    with pytest.raises(UnavailableError, match=r"the worker was lost and none came back in time: step .* is overdue"):
        collect(patient)
    assert not server.client.health(timeout=10)
    sound(hidden, how)
    server.scheduler.wait_serving()
    assert len(server.complete("Awake again?", max_tokens=5, ignore_eos=True).token_ids) == 5
    server.wait_empty()


def test_a_connection_that_is_cut_is_made_again(hidden: Hidden) -> None:
    server = hidden.server
    undisturbed = server.complete(PROMPT, max_tokens=OUTPUT, ignore_eos=True)
    stream = server.generate(PROMPT, max_tokens=OUTPUT, ignore_eos=True)
    head = list(islice(stream, 5))
    hidden.network.cut()
    assert join("", [*head, *stream], stream.usage).token_ids == undisturbed.token_ids
    server.wait_empty()
