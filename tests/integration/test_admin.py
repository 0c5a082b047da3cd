"""The admin service of real processes: why a request waits, whose blocks they are, what a step did."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from clients import AdminClient, NotFoundError
from octavo.serving.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import wait_until

NUM_BLOCKS = 64


@pytest.fixture
def server(uniform_model: Path, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(uniform_model, tmp_path, worker_args=["--num-gpu-blocks-override", str(NUM_BLOCKS)]) as running:
        yield running


@pytest.fixture
def admin(server: Cluster) -> Iterator[AdminClient]:
    with AdminClient(server.scheduler.address, timeout=10) as client:
        yield client


def test_a_frozen_worker_leaves_time_to_ask_why_a_request_waits(server: Cluster, admin: AdminClient) -> None:
    holder = server.generate("h" * 70, request_id="holder", max_tokens=700, ignore_eos=True, cache_salt="a")
    first = next(holder)
    server.worker.pause()
    try:
        waiter = server.generate("w" * 980, request_id="waiter", max_tokens=20, ignore_eos=True, cache_salt="b")
        wait_until(lambda: len(list(admin.requests())) == 2, "both requests are listed")
        running, waiting = admin.requests()
        assert (running.request_id, running.state, waiting.request_id, waiting.state) == (
            "holder",
            "running",
            "waiter",
            "waiting",
        )
        told = admin.explain("waiter")
        needed, free = -(-waiting.prompt_tokens // 16), NUM_BLOCKS - running.blocks
        assert told.summary == f"needs {needed} blocks, {free} free, 0 evictable, watermark 0"
        assert [(entry.request_id, entry.blocks) for entry in told.holders] == [("holder", running.blocks)]
        table = list(admin.block_table("holder"))
        assert len(table) == running.blocks
        assert all(block.users[0][0] == "holder" for block in table)
        assert sum(block.tokens for block in table) == running.computed_tokens
        assert len(list(admin.blocks(state="free"))) == free
        assert admin.drop_prefix().dropped_blocks == 0
    finally:
        server.worker.resume()
    assert len(first.token_ids) + len(collect(holder).token_ids) == 700
    assert len(collect(waiter).token_ids) == 20
    server.wait_empty()
    with pytest.raises(NotFoundError):
        admin.explain("waiter")
    before = server.stats().blocks.cached
    assert before > 0
    assert admin.drop_prefix().dropped_blocks == before
    assert server.stats().blocks.free == NUM_BLOCKS


def test_watched_steps_are_those_of_the_counters(server: Cluster) -> None:
    with grpc.insecure_channel(server.scheduler.address) as channel:
        watch = admin_pb2_grpc.AdminServiceStub(channel).WatchSteps(admin_pb2.WatchStepsRequest())
        steps: list[admin_pb2.StepSummary] = []

        def read() -> None:
            with contextlib.suppress(grpc.RpcError):  # it ends by being cancelled
                steps.extend(answer.step for answer in watch)

        reader = threading.Thread(target=read)
        reader.start()
        # There is no sign of a watch's beginning but its first step.
        wait_until(lambda: bool(server.complete("x", max_tokens=1)) and bool(steps), "a step is watched")
        before, first = server.wait_empty().counters, len(steps)
        server.complete("watch me", max_tokens=12, ignore_eos=True)
        after = server.wait_empty().counters
        wait_until(lambda: len(steps) - first == after.steps - before.steps, "all steps are watched")
        watch.cancel()
        reader.join(30)
        assert watch.code() is grpc.StatusCode.CANCELLED
    seen = steps[first:]
    assert [step.step_id for step in seen] == list(range(seen[0].step_id, seen[0].step_id + len(seen)))
    assert sum(step.tokens for step in seen) == after.computed_tokens - before.computed_tokens
    assert sum(step.admissions for step in seen) == 1
    assert all(step.execute_seconds > 0 and step.turnaround_seconds > 0 for step in seen)
