"""Front ends as processes of their own: whichever a caller's connection ends at, it is one service."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpc
import pytest

from clients import NotFoundError, UnavailableError
from clients.admin import AdminClient
from octavo.serving.v1 import generation_pb2, generation_pb2_grpc, sampling_pb2
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import free_port, wait_until
from tests.integration.scrape import Scrape

NUM_CONNECTIONS = 16  # all at one of two front ends: one time in 32,768
METRICS_PORT = free_port()


@contextlib.contextmanager
def two_frontends(model: Path, logs: Path, *args: str) -> Iterator[Cluster]:
    with cluster(
        model,
        logs,
        worker_args=["--num-gpu-blocks-override", "1200"],
        scheduler_args=["--frontends", "2", *args],
    ) as server:
        yield server


@pytest.fixture(scope="module")
def server(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    metrics = ["--metrics-port", str(METRICS_PORT)]
    with two_frontends(uniform_model, tmp_path_factory.mktemp("frontends"), *metrics) as running:
        yield running


@contextlib.contextmanager
def connections(server: Cluster) -> Iterator[list[generation_pb2_grpc.GenerationServiceStub]]:
    """Stubs with a connection each."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    with contextlib.ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(server.scheduler.address, options=own))
            for _ in range(NUM_CONNECTIONS)
        ]
        yield [generation_pb2_grpc.GenerationServiceStub(channel) for channel in channels]


def asked(name: str, max_tokens: int) -> generation_pb2.GenerateRequest:
    sampling = sampling_pb2.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return generation_pb2.GenerateRequest(request_id=name, text="the same for all", sampling_params=sampling)


def ids(call: Iterable[generation_pb2.GenerateResponse]) -> list[int]:
    return [token_id for piece in call for delta in piece.deltas for token_id in delta.token_ids]


def frontends(server: Cluster) -> list[int]:
    """Process ids of the front ends."""
    pid = server.scheduler.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_every_connection_reaches_the_same_service(server: Cluster) -> None:
    before = Scrape.of(METRICS_PORT)
    with connections(server) as stubs:
        calls = [stub.Generate(asked(f"call-{index}", 60), timeout=120) for index, stub in enumerate(stubs)]
        outputs = [ids(call) for call in calls]
    expected = server.complete("the same for all", max_tokens=60, ignore_eos=True)
    assert outputs == [list(expected.token_ids)] * NUM_CONNECTIONS
    server.wait_empty()

    def counted() -> bool:
        after = Scrape.of(METRICS_PORT)
        grown = after.value("vllm:request_success_total") - before.value("vllm:request_success_total")
        return grown == NUM_CONNECTIONS + 1 and after.value("octavo:live_requests") == 0

    wait_until(counted, "both front ends have reported what they counted")


def test_a_request_id_is_unique_over_all_front_ends_and_each_can_explain_it(server: Cluster) -> None:
    with connections(server) as stubs:
        first = stubs[0].Generate(asked("mine", 3000), timeout=120)
        next(first)
        codes = set()
        for stub in stubs[1:]:
            with pytest.raises(grpc.RpcError) as refused:
                next(stub.Generate(asked("mine", 3), timeout=120))
            codes.add(refused.value.code())
        assert codes == {grpc.StatusCode.ALREADY_EXISTS}
        for _ in range(4):
            with AdminClient(server.scheduler.address) as admin:
                assert [one.request_id for one in admin.requests()] == ["mine"]
                assert admin.explain("mine").sequences
        with AdminClient(server.scheduler.address) as admin, pytest.raises(NotFoundError) as unknown:
            admin.explain("yours")
        assert unknown.value.reason == "REQUEST_NOT_LIVE"
        next(first)
        first.cancel()
    server.wait_empty()
    assert len(server.complete("again", request_id="mine", max_tokens=3, ignore_eos=True).token_ids) == 3


def test_no_process_of_the_scheduler_takes_a_core_from_a_thread_in_its_slice(server: Cluster) -> None:
    pids = [server.scheduler.process.pid, *frontends(server)]
    assert [os.sched_getscheduler(pid) for pid in pids] == [os.SCHED_BATCH] * 3


def test_the_death_of_a_front_end_costs_its_callers_only(server: Cluster) -> None:
    server.wait_empty()
    victim, survivor = frontends(server)
    with connections(server) as stubs:
        calls = [stub.Generate(asked(f"long-{index}", 600), timeout=120) for index, stub in enumerate(stubs)]
        firsts = [ids([next(call)]) for call in calls]
        aborted = Scrape.of(METRICS_PORT).value("octavo:request_failure_total", reason="abort")
        os.kill(victim, signal.SIGKILL)
        outcomes = [_outcome(first, call) for first, call in zip(firsts, calls, strict=True)]
    assert set(outcomes) == {600, grpc.StatusCode.UNAVAILABLE}
    lost = outcomes.count(grpc.StatusCode.UNAVAILABLE)
    # At least: an earlier test's cancel may have been reported late.
    assert Scrape.of(METRICS_PORT).value("octavo:request_failure_total", reason="abort") - aborted >= lost
    server.wait_empty()
    wait_until(lambda: len(frontends(server)) == 2, "another one takes its place")
    assert survivor in frontends(server)
    wait_until(lambda: _serves_on_all(server), "all connections are served again")


def _outcome(first: list[int], call: Iterable[generation_pb2.GenerateResponse]) -> int | grpc.StatusCode:
    """Number of tokens, or the error's code."""
    try:
        return len(first) + len(ids(call))
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code


def _serves_on_all(server: Cluster) -> bool:
    with connections(server) as stubs:
        try:
            return all(
                len(ids(stub.Generate(asked(f"{index}", 2), timeout=60))) == 2 for index, stub in enumerate(stubs)
            )
        except grpc.RpcError:
            return False


def test_a_drain_waits_for_all_front_ends(uniform_model: Path, tmp_path: Path) -> None:
    with two_frontends(uniform_model, tmp_path, "--max-num-seqs", "2", "--max-num-waiting", "1") as server:
        with connections(server) as stubs:
            calls, firsts = [], []
            for index, stub in enumerate(stubs[:3]):
                calls.append(stub.Generate(asked(f"running-{index}", 700), timeout=120))
                if index < 2:  # one after the other, for only one may wait
                    firsts.append(ids([next(calls[-1])]))
            server.wait_for(lambda stats: stats.queues.waiting == 1, "the third waits")
            for stub in stubs:  # what the core refuses, whichever front end asked, leaves nothing behind
                with pytest.raises(grpc.RpcError, match="1 sequences wait, limit 1"):
                    next(stub.Generate(asked("refused", 1), timeout=120))
            server.scheduler.terminate()
            wait_until(lambda: not server.scheduler.serving(), "the scheduler is NOT_SERVING")
            with pytest.raises(UnavailableError):
                server.complete("new", max_tokens=1)
            counts = [len(ids(call)) for call in calls]
            assert [len(firsts[0]) + counts[0], len(firsts[1]) + counts[1], counts[2]] == [700] * 3
        assert server.scheduler.wait() == 0


def test_what_is_lost_is_named_and_no_process_is_left(uniform_model: Path, tmp_path: Path) -> None:
    with two_frontends(uniform_model, tmp_path, "--drain-grace", "0") as server:
        pids = frontends(server)
        stream = server.generate("lost", request_id="lost", max_tokens=3000, ignore_eos=True)
        next(stream)
        server.scheduler.terminate()
        with pytest.raises(UnavailableError) as lost:
            collect(stream)
        assert lost.value.reason == "SHUTDOWN"
        assert server.scheduler.wait() == 1
        assert '"request_id": "lost", "why": "grace over"' in server.scheduler.log_text()
        # Names in GRPC_EXPERIMENTS come and go with gRPC's versions; it complains of those that it does not know.
        assert not any("Unknown experiment" in service.log_text() for service in (server.scheduler, server.worker))
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_front_ends_end_with_a_scheduler_that_is_killed(server: Cluster) -> None:
    pids = frontends(server)
    server.scheduler.kill()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the front ends have ended")
