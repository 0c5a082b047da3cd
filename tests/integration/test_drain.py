"""SIGTERM: what is running ends, what comes is refused, and the exit code and the log say what was lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients import Delta, DeltaStream, FinishReason, UnavailableError
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import wait_until

NUM_ROWS = 3


@contextlib.contextmanager
def busy(
    model: Path, logs: Path, *scheduler_args: str
) -> Iterator[tuple[Cluster, dict[DeltaStream, Delta], DeltaStream]]:
    """Three running streams with the first delta of each, and one that waits for a row."""
    args = ["--max-num-seqs", str(NUM_ROWS), *scheduler_args]
    with cluster(model, logs, worker_args=["--num-gpu-blocks-override", "512"], scheduler_args=args) as server:
        running = [
            server.generate(f"running {index}", request_id=f"running-{index}", max_tokens=1200, ignore_eos=True)
            for index in range(NUM_ROWS)
        ]
        firsts = {stream: next(stream) for stream in running}
        queued = server.generate("queued", request_id="queued", max_tokens=5, ignore_eos=True)
        server.wait_for(lambda stats: stats.queues.waiting == 1, "one waits")
        yield server, firsts, queued


def events(server: Cluster) -> list[dict[str, object]]:
    return [json.loads(line) for line in server.scheduler.log_text().splitlines()]


def test_sigterm_lets_running_and_queued_ones_end_and_refuses_new_ones(uniform_model: Path, tmp_path: Path) -> None:
    with busy(uniform_model, tmp_path) as (server, running, queued):
        server.scheduler.terminate()
        wait_until(lambda: not server.scheduler.serving(), "the scheduler is NOT_SERVING")
        with pytest.raises(UnavailableError) as refused:
            server.complete("new", max_tokens=1)
        assert (refused.value.reason, refused.value.retry_after) == ("DRAINING", 1.0)
        for stream, first in running.items():
            rest = collect(stream)
            assert len(first.token_ids) + len(rest.token_ids) == 1200
            assert rest.finish_reason is FinishReason.LENGTH
        assert len(collect(queued).token_ids) == 5
        assert server.scheduler.wait() == 0
        assert events(server)[-1]["lost"] == 0
        # The worker is a service of its own and is still there; it drains by itself.
        assert server.worker.serving()
        server.worker.terminate()
        assert server.worker.wait() == 0


@pytest.mark.parametrize("cause", ["grace", "second signal"])
def test_what_is_lost_is_named_and_callers_may_try_elsewhere(uniform_model: Path, tmp_path: Path, cause: str) -> None:
    grace = "0.2" if cause == "grace" else "3600"
    with busy(uniform_model, tmp_path, "--drain-grace", grace) as (server, running, queued):
        with server.frozen_worker():
            server.scheduler.terminate()
            if cause == "second signal":
                wait_until(lambda: not server.scheduler.serving(), "it drains")
                server.scheduler.terminate()
            for stream in (*running, queued):
                with pytest.raises(UnavailableError) as lost:
                    collect(stream)
                assert (lost.value.reason, lost.value.retry_after) == ("SHUTDOWN", 1.0)
            assert server.scheduler.wait() == 1
        lines = [line for line in events(server) if line["event"] == "request lost"]
        assert {line["request_id"] for line in lines} == {"queued", *(f"running-{index}" for index in range(NUM_ROWS))}
        assert {line["why"] for line in lines} == {"grace over" if cause == "grace" else "second signal"}
        assert events(server)[-1]["lost"] == 4


@pytest.mark.parametrize("shown", [False, True], ids=["prompts hidden", "prompts shown"])
def test_lines_about_a_request_name_it_and_show_its_prompt_only_if_asked(
    uniform_model: Path, tmp_path: Path, shown: bool
) -> None:
    flags = ["--log-level", "debug", *(["--log-prompts"] if shown else [])]
    secret = "what nobody else should read"
    with cluster(uniform_model, tmp_path, scheduler_args=flags) as server:
        server.complete(secret, request_id="mine", max_tokens=2)
        server.complete(messages=[{"role": "user", "content": secret}], request_id="mine", max_tokens=2)
        with pytest.raises(Exception, match="top_p"):
            server.complete(secret, request_id="mine", top_p=0)
        with server.generate(secret, request_id="mine", max_tokens=3000, ignore_eos=True) as stream:
            next(stream)
        server.wait_empty()
        wait_until(lambda: server.scheduler.log_text().count("request ended") == 3, "the ends are logged")
        about = [line for line in events(server) if str(line["event"]).startswith("request")]
        counts = {"accepted": 3, "ended": 3, "refused": 1} | ({"prompt": 3} if shown else {})
        names = [str(line["event"]).removeprefix("request ") for line in about]
        assert {name: names.count(name) for name in names} == counts
        assert all(line["request_id"] == "mine" for line in about)
        assert (secret in server.scheduler.log_text()) == shown
        assert secret not in server.worker.log_text()
