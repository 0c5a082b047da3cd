"""Several workers behind one scheduler: what one loses goes on at the others, and nobody can tell from the tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from clients import AdminClient, Client, Completion, DeltaStream, InternalError
from clients.results import join
from scheduler.recording.reader import Recording
from scheduler.recording.replay import replay
from tests.integration.checksums import assert_closed_form
from tests.integration.deadly_worker import FAILS, KILLS
from tests.integration.harness import EXACT, Cluster, cluster, collect, scheduler_process, worker_process
from tests.integration.processes import ServiceProcess, wait_until
from tests.integration.restarts import restarting
from tests.oracle.tokenizer import byte_ids
from tests.oracle.uniform import UniformOracle

POOL = ["--num-gpu-blocks-override", "256"]
HASTY = ["--worker-grace", "60", "--step-timeout", "1", "--step-timeout-per-token", "0.01"]
OUTPUT = 400
PROMPTS = [f"Worker number {index} may die while it reads this " * 2 for index in range(6)]


@pytest.fixture(scope="module")
def pair(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers; every test leaves both serving."""
    logs = tmp_path_factory.mktemp("pair")
    recorded = [*HASTY, "--record", str(logs / "run.rec")]
    with cluster(uniform_model, logs, worker_args=POOL, scheduler_args=recorded, num_workers=2) as running:
        yield running


def submit(server: Cluster, index: int, *, max_tokens: int = OUTPUT, **more: object) -> DeltaStream:
    """Greedy and seeded by turns."""
    sampling = {"temperature": 1.0, "seed": index} if index % 2 else {"temperature": 0.0}
    return server.generate(PROMPTS[index], max_tokens=max_tokens, ignore_eos=True, logprobs=5, **sampling, **more)  # type: ignore[arg-type]


def finish(heads: list[list[object]], streams: list[DeltaStream]) -> list[Completion]:
    return [join("", [*head, *stream], stream.usage) for head, stream in zip(heads, streams, strict=True)]  # type: ignore[list-item]


def holders(server: Cluster) -> dict[str, str]:
    """The worker of each live request."""
    with AdminClient(server.scheduler.address, timeout=10) as admin:
        return {one.request_id: one.worker for one in admin.requests()}


def health(server: Cluster, service: str) -> str:
    with grpc.insecure_channel(server.scheduler.address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


@pytest.fixture(scope="module")
def undisturbed(pair: Cluster) -> list[tuple[int, ...]]:
    return [collect(submit(pair, index)).token_ids for index in range(len(PROMPTS))]


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_streams_of_a_lost_worker_go_on_at_the_other(
    pair: Cluster, uniform: UniformOracle, undisturbed: list[tuple[int, ...]], how: str
) -> None:
    streams = [submit(pair, index, request_id=f"{how}-{index}") for index in range(len(PROMPTS))]
    heads = [list(islice(stream, 5)) for stream in streams]
    assert set(holders(pair).values()) == {worker.address for worker in pair.workers}, "both have some"
    lost, other = pair.workers
    name = f"worker/{lost.address}"
    assert health(pair, name) == health(pair, "") == "SERVING"
    if how == "SIGKILL":
        lost.kill()
    else:
        lost.pause()
    wait_until(lambda: health(pair, name) == "NOT_SERVING", "the worker is seen to be lost")
    assert health(pair, f"worker/{other.address}") == health(pair, "") == "SERVING"
    assert set(holders(pair).values()) <= {other.address}
    for index, completion in enumerate(finish(heads, streams)):
        assert completion.token_ids == undisturbed[index]
        assert_closed_form(uniform, byte_ids(PROMPTS[index]), completion)
    if how == "SIGKILL":
        lost.start()
    else:
        lost.resume()
    wait_until(lambda: health(pair, name) == "SERVING", "the worker is back")
    stats = pair.wait_empty()
    assert stats.counters.recomputed_tokens > 0
    assert stats.counters.computed_tokens == (
        stats.counters.kept_tokens + stats.counters.recomputed_tokens + stats.counters.wasted_tokens
    )
    assert sum(worker.hangs for worker in stats.workers) == (how == "SIGSTOP")


def test_a_conversation_stays_with_the_worker_that_has_its_prefix(pair: Cluster) -> None:
    pair.wait_connected()
    prompts = {name: name * 320 for name in "AB"}
    streams = [pair.generate(prompts[name], max_tokens=200, ignore_eos=True, request_id=name) for name in "AB"]
    heads = [list(islice(stream, 1)) for stream in streams]
    first = holders(pair)
    assert set(first.values()) == {worker.address for worker in pair.workers}, "both have one"
    finish(heads, streams)
    for name in "BABBA":
        stream = pair.generate(prompts[name] + "!", max_tokens=50, ignore_eos=True, request_id=name)
        head = list(islice(stream, 1))
        assert holders(pair) == {name: first[name]}
        (completion,) = finish([head], [stream])
        assert completion.usage.cached_tokens == 320


def test_both_workers_lost_and_one_back_is_enough(pair: Cluster, undisturbed: list[tuple[int, ...]]) -> None:
    pair.wait_connected()
    streams = [submit(pair, index) for index in range(4)]
    heads = [list(islice(stream, 5)) for stream in streams]
    for worker in pair.workers:
        worker.kill()
    wait_until(lambda: health(pair, "") == "NOT_SERVING", "no worker is left")
    pair.wait_for(lambda stats: stats.blocks.total == 0, "blocks of workers that are away are not counted")
    pair.workers[1].start()
    completions = finish(heads, streams)
    assert [completion.token_ids for completion in completions] == undisturbed[:4]
    pair.workers[0].start()
    assert pair.wait_connected().blocks.total == 2 * int(POOL[1])
    pair.wait_empty()


def test_each_worker_s_recording_replays_by_itself(pair: Cluster) -> None:
    """All that the tests above did to the two, moves among it."""
    pair.wait_empty()
    verbs: set[str] = set()
    for name in ("run.rec", "run.rec-2"):
        recording = Recording(pair.scheduler.log.with_name(name))
        verdict = replay(recording)
        assert verdict.difference is None
        assert verdict.num_steps > 0
        verbs |= {call.verb.name for call in recording.calls()}
    assert {"add_group", "requeue_all", "withdraw", "adopt"} <= verbs


def test_a_killer_costs_three_deaths_and_its_neighbours_nothing(uniform_model: Path, tmp_path: Path) -> None:
    with cluster(
        uniform_model,
        tmp_path,
        worker_args=POOL,
        scheduler_args=HASTY,
        num_workers=2,
        worker_module="tests.integration.deadly_worker",
    ) as server:
        neighbours = [submit(server, index) for index in range(4)]
        heads = [list(islice(stream, 2)) for stream in neighbours]
        killer = server.generate(token_ids=[5, KILLS, 7], max_tokens=20, ignore_eos=True)
        with restarting(server.workers) as deaths:
            with pytest.raises(InternalError, match="workers died while the request was computed"):
                collect(killer)
            assert all(len(completion.token_ids) == OUTPUT for completion in finish(heads, neighbours))
            wait_until(lambda: len(deaths) >= 3, "the last death is noticed")
            server.wait_connected()
        assert len(deaths) == 3

        # A step that fails for want of memory ends the stream and not the process.
        alive = [worker.process.pid for worker in server.workers]
        neighbours = [submit(server, index) for index in range(4)]
        heads = [list(islice(stream, 2)) for stream in neighbours]
        with pytest.raises(InternalError, match="workers died while the request was computed"):
            server.complete(token_ids=[5, FAILS, 7], max_tokens=20, ignore_eos=True)
        assert all(len(completion.token_ids) == OUTPUT for completion in finish(heads, neighbours))
        assert [worker.process.pid for worker in server.workers] == alive
        server.wait_empty()


def test_workers_join_and_leave_with_their_name(uniform: UniformOracle, uniform_model: Path, tmp_path: Path) -> None:
    """Two addresses of this machine, one port."""
    names = tmp_path / "names"
    names.write_text("workers 127.0.0.1\n")
    first = worker_process(uniform_model, tmp_path, [*EXACT, "--threads", "1", *POOL], name="first")
    arguments = ["--model", str(uniform_model), "--host", "127.0.0.2", "--port", str(first.port), *EXACT, *POOL]
    second = ServiceProcess(
        "second", ["-m", "worker", *arguments, "--threads", "1"], first.port, tmp_path / "second.log"
    )
    target = f"dns:///workers:{first.port}"
    program = ["-m", "tests.integration.scheduler_with_names"]
    scheduler = scheduler_process(
        uniform_model, tmp_path, target, ["--max-num-seqs", "2"], {"NAMES": str(names)}, program
    )
    with contextlib.ExitStack() as cleanup:
        for process in (first, second, scheduler):
            cleanup.callback(process.kill)
            process.start()
        scheduler.wait_serving()
        client = cleanup.enter_context(Client(scheduler.address))
        server = Cluster(workers=(first, second), scheduler=scheduler, client=client, proxy=None)
        joined, left = f"127.0.0.2:{first.port}", f"127.0.0.1:{first.port}"
        assert [worker.address for worker in server.stats().workers] == [left]
        streams = [submit(server, index, max_tokens=1000) for index in range(4)]  # two rows, so that two wait
        names.write_text("workers 127.0.0.1 127.0.0.2\n")
        server.wait_for(
            lambda stats: [one.queues.running > 0 for one in stats.workers] == [True, True], "what waited has moved"
        )
        assert health(server, f"worker/{joined}") == "SERVING"
        names.write_text("workers 127.0.0.2\n")
        for index, stream in enumerate(streams):
            completion = collect(stream)
            assert len(completion.token_ids) == 1000
            assert_closed_form(uniform, byte_ids(PROMPTS[index]), completion)
        server.wait_for(lambda stats: [one.address for one in stats.workers] == [joined], "the first one has left")
        assert health(server, f"worker/{left}") == "SERVICE_UNKNOWN"
        first.kill()
        assert health(server, f"worker/{joined}") == health(server, "") == "SERVING"
        assert len(server.complete("Still there?", max_tokens=5, ignore_eos=True).token_ids) == 5
        assert server.wait_empty().counters.finished == 5
