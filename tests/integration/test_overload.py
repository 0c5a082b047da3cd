"""More than the services can take: full queues, callers that vanish by the thousand, readers that do not read, messages
that are too large, and long silences."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from clients import AsyncClient, Client, DeadlineError, DeltaStream, InvalidRequestError, ResourceExhaustedError, Stats
from octavo.serving.v1 import generation_pb2, generation_pb2_grpc, sampling_pb2
from tests.integration.harness import Cluster, cluster
from tests.integration.processes import free_port, wait_until
from tests.integration.scrape import Scrape

NUM_CANCELS = 1000
METRICS_PORT = free_port()


@pytest.fixture(scope="module")
def server(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    limits = ["--max-num-seqs", "4", "--max-num-waiting", "1200", "--max-num-waiting-tokens", "20000"]
    with cluster(
        uniform_model,
        tmp_path_factory.mktemp("overload"),
        worker_args=["--num-gpu-blocks-override", "1100"],
        scheduler_args=[*limits, "--worker-grace", "300", "--metrics-port", str(METRICS_PORT)],
    ) as running:
        yield running


def occupy(server: Cluster) -> list[DeltaStream]:
    """Requests that take every row for as long as a test lasts."""
    server.wait_empty()
    runners = [server.generate(f"runner {index}", max_tokens=4000, ignore_eos=True) for index in range(4)]
    for runner in runners:
        next(runner)
    return runners


def release(server: Cluster, streams: list[DeltaStream]) -> Stats:
    for stream in streams:
        stream.close()
    return server.wait_empty()


def test_a_full_queue_refuses_and_says_when_to_try_again(server: Cluster) -> None:
    runners = occupy(server)
    waiters = [server.generate("w" * 4000, max_tokens=1) for _ in range(5)]
    server.wait_for(lambda stats: stats.queues.waiting == 5, "five wait")
    with pytest.raises(ResourceExhaustedError, match="20000 prompt tokens wait, 1 more are over") as refused:
        server.complete("x", max_tokens=1)
    assert refused.value.reason == "QUEUE_FULL"
    assert refused.value.retry_after == 1.0
    assert Scrape.of(METRICS_PORT).value("octavo:waiting_tokens") == 20000
    waiters.pop().close()
    server.wait_for(lambda stats: stats.queues.waiting == 4, "four wait")
    late = server.generate("x", max_tokens=1)
    server.wait_for(lambda stats: stats.queues.waiting == 5, "there is room again")
    release(server, [*runners, *waiters, late])


def test_a_deadline_that_passes_in_the_queue_costs_no_computation(server: Cluster) -> None:
    runners = occupy(server)
    with server.frozen_worker():  # computed tokens stand still but for the request's own
        computed = wait_until(lambda: settled(server), "the plans in flight are sent")
        with pytest.raises(DeadlineError):
            server.complete("never admitted", max_tokens=1, timeout=0.3)
        after = server.wait_for(lambda stats: stats.queues.waiting == 0, "it waits no more")
        assert after.counters.computed_tokens == computed
    assert Scrape.of(METRICS_PORT).value("octavo:request_failure_total", reason="deadline") > 0
    release(server, runners)


def settled(server: Cluster) -> int:
    """Computed tokens if they do not grow; else 0."""
    before = server.stats().counters.computed_tokens
    return before if server.stats().counters.computed_tokens == before else 0


def test_a_thousand_cancels_at_once_leave_nothing_behind(server: Cluster) -> None:
    before = server.wait_empty().counters

    def all_but_four_wait(stats: Stats) -> bool:
        return stats.queues.waiting == NUM_CANCELS - 4

    async def all_at_once() -> None:
        async with AsyncClient(server.scheduler.address) as client:
            streams = [
                client.generate(f"{index:04d} goes", temperature=0.0, max_tokens=4000, ignore_eos=True)
                for index in range(NUM_CANCELS)
            ]
            firsts = [asyncio.create_task(anext(stream)) for stream in streams]
            await asyncio.to_thread(server.wait_for, all_but_four_wait, "all are there")
            for _, running in zip(range(4), asyncio.as_completed(firsts, timeout=60), strict=False):
                await running  # whichever came first
            for first in firsts:
                first.cancel()
            await asyncio.gather(*firsts, return_exceptions=True)
            await asyncio.gather(*(stream.aclose() for stream in streams))

    asyncio.run(all_at_once())
    after = server.wait_empty()
    assert after.counters.finished - before.finished == NUM_CANCELS
    scrape = Scrape.of(METRICS_PORT)
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "octavo:waiting_tokens"):
        assert scrape.value(gauge) == 0
    wait_until(lambda: not Scrape.of(METRICS_PORT).value("octavo:live_requests"), "no request is live")


def test_a_caller_that_does_not_read_holds_up_nobody_and_loses_nothing(server: Cluster) -> None:
    """1,500 tokens with twenty log probabilities each are six times what the connection buffers; without the options,
    gRPC would let it buffer ever more."""
    server.wait_empty()
    count = 1500
    small_window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65535)]
    with grpc.insecure_channel(server.scheduler.address, options=small_window) as channel:
        asked = sampling_pb2.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, logprobs=20)
        request = generation_pb2.GenerateRequest(text="unread", sampling_params=asked)
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=120)
        first = next(call)
        server.wait_for(lambda stats: stats.queues.running == 0, "all its tokens are generated")
        scrape = Scrape.of(METRICS_PORT)
        assert 0 < scrape.value("octavo:unread_tokens") < count
        assert len(server.complete("somebody else", max_tokens=20, ignore_eos=True).token_ids) == 20
        pieces = [first, *call]  # gRPC's default of 4 MiB per message holds for this channel
    deltas = [delta for piece in pieces for delta in piece.deltas]
    assert sum(len(delta.token_ids) for delta in deltas) == count
    assert sum(len(delta.logprobs) for delta in deltas) == count
    assert max(len(delta.token_ids) for delta in deltas) > 1
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [generation_pb2.FINISH_REASON_LENGTH]
    assert deltas[-1].finish_reason
    expected = server.complete("unread", max_tokens=count, ignore_eos=True)
    assert [token_id for delta in deltas for token_id in delta.token_ids] == list(expected.token_ids)
    assert "".join(delta.text for delta in deltas) == expected.text


def test_a_million_token_ids_and_a_message_of_20_mb_are_refused_and_the_channel_lives_on(server: Cluster) -> None:
    with Client(server.scheduler.address) as client:
        with pytest.raises(InvalidRequestError) as refused:
            client.complete(token_ids=[300] * 1_200_000, max_tokens=1, timeout=60)
        assert refused.value.violations[0].field == "token_ids.ids"
        assert (
            "1200000" in refused.value.violations[0].description and "4096" in refused.value.violations[0].description
        )
        with pytest.raises(ResourceExhaustedError, match=r"larger than max|Received message larger"):
            client.complete("x" * 20_000_000, max_tokens=1, timeout=60)
        assert len(client.complete("x", max_tokens=3, ignore_eos=True, timeout=60).token_ids) == 3


@pytest.mark.slow
def test_keepalive_every_10_s_survives_a_silence_of_60_s(server: Cluster) -> None:
    server.wait_empty()
    options = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_permit_without_calls", 1)]
    options += [("grpc.http2.max_pings_without_data", 0)]
    policy = {"methodConfig": [{"name": [{}], "retryPolicy": None}]}  # a retry would hide a connection that was lost
    options += [("grpc.service_config", json.dumps(policy)), ("grpc.enable_retries", 0)]
    server.worker.kill()
    with grpc.insecure_channel(server.scheduler.address, options=options) as channel:
        asked = sampling_pb2.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        request = generation_pb2.GenerateRequest(text="patient", sampling_params=asked)
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=200)
        done = asyncio.run(_silent(call, 62))
        assert not done, "the call ended in the silence"
        server.worker.start()
        assert sum(len(delta.token_ids) for piece in call for delta in piece.deltas) == 3


async def _silent(call: grpc.Call, seconds: float) -> bool:
    """Whether the call ends within this time."""
    await asyncio.sleep(seconds)
    return not call.is_active()
