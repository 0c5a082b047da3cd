"""Request ids, deadlines, and callers and schedulers that go away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients import AlreadyExistsError, Client, DeadlineError, UnavailableError
from tests.integration.harness import Cluster, cluster, collect


@pytest.fixture(scope="module")
def server(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(
        uniform_model,
        tmp_path_factory.mktemp("lifecycle"),
        worker_args=["--num-gpu-blocks-override", "512"],
        scheduler_args=["--max-num-seqs", "2"],
    ) as running:
        yield running


def test_a_live_request_id_cannot_be_taken_and_an_ended_one_can(server: Cluster) -> None:
    with server.generate("first", request_id="mine", max_tokens=2000, ignore_eos=True) as stream:
        next(stream)
        assert stream.request_id == "mine"
        with pytest.raises(AlreadyExistsError, match="mine"):
            server.complete("second", request_id="mine", max_tokens=1)
        next(stream)  # the first is not disturbed
    server.wait_empty()
    for _ in range(2):
        answer = server.complete("third", request_id="mine", max_tokens=2, ignore_eos=True)
        assert answer.request_id == "mine"
        assert len(answer.token_ids) == 2


def test_requests_without_an_id_get_different_ones(server: Cluster) -> None:
    ids = {server.complete("x", max_tokens=1).request_id for _ in range(3)}
    assert len(ids) == 3
    assert "" not in ids


def test_a_stream_interval_makes_fewer_messages_of_the_same_answer(server: Cluster) -> None:
    wanted = server.complete("many tokens", max_tokens=100, ignore_eos=True)
    deltas = list(server.generate("many tokens", max_tokens=100, ignore_eos=True, stream_interval=32))
    sizes = [len(delta.token_ids) for delta in deltas]
    assert len(sizes) <= 5  # the first token, three times 32, the end
    assert all(size >= 32 for size in sizes[1:-1])
    assert [token for delta in deltas for token in delta.token_ids] == list(wanted.token_ids)
    assert "".join(delta.text for delta in deltas) == wanted.text
    whole = server.client.complete("many tokens", temperature=0.0, max_tokens=100, ignore_eos=True, timeout=60)
    assert (whole.token_ids, whole.text, whole.finish_reason) == (wanted.token_ids, wanted.text, wanted.finish_reason)


def test_a_deadline_ends_a_running_request_and_frees_its_blocks(server: Cluster) -> None:
    with pytest.raises(DeadlineError):
        server.complete("too long", max_tokens=4000, ignore_eos=True, timeout=0.3)
    server.wait_empty()


def test_a_deadline_ends_a_waiting_request_before_anything_is_computed(server: Cluster) -> None:
    server.wait_empty()
    runners = [server.generate(f"runner {i}", max_tokens=3000, ignore_eos=True) for i in range(2)]
    for runner in runners:
        next(runner)  # both rows are taken
    queries = server.stats().counters.prefix_cache_queries
    with pytest.raises(DeadlineError):
        server.complete("never admitted", max_tokens=1, timeout=0.2)
    assert server.wait_for(lambda s: s.queues.waiting == 0, "it waits no more").counters.prefix_cache_queries == queries
    for runner in runners:
        runner.close()
    server.wait_empty()


def test_dropping_a_waiting_call_takes_it_out_of_the_queue(server: Cluster) -> None:
    server.wait_empty()
    runners = [server.generate(f"runner {i}", max_tokens=3000, ignore_eos=True) for i in range(2)]
    for runner in runners:
        next(runner)
    waiting = server.generate("waits", max_tokens=1)
    server.wait_for(lambda s: s.queues.waiting == 1, "it waits")
    waiting.close()
    server.wait_for(lambda s: s.queues.waiting == 0, "it waits no more")
    for runner in runners:
        runner.close()
    server.wait_empty()


def test_a_client_that_vanishes_leaves_no_block_behind(server: Cluster) -> None:
    server.wait_empty()
    with Client(server.scheduler.address) as other:
        streams = [other.generate(f"doomed {i}", temperature=0.0, max_tokens=3000, ignore_eos=True) for i in range(3)]
        next(streams[0])
        server.wait_for(lambda s: s.queues.running == 2 and s.queues.waiting == 1, "two run and one waits")
    server.wait_empty()


def test_another_scheduler_takes_the_worker_over(uniform_model: Path, tmp_path: Path) -> None:
    with cluster(uniform_model, tmp_path, worker_args=["--num-gpu-blocks-override", "128"]) as server:
        expected = server.complete("the same again", max_tokens=20, ignore_eos=True)
        stream = server.generate("cut off", max_tokens=1500, ignore_eos=True)
        next(stream)
        server.scheduler.kill()
        with pytest.raises(UnavailableError):
            collect(stream)
        server.scheduler.start().wait_serving()
        again = server.complete("the same again", max_tokens=20, ignore_eos=True)
        assert again.token_ids == expected.token_ids
        assert again.usage is not None
        assert again.usage.cached_tokens == 0  # a new scheduler knows nothing of the worker's blocks
        server.wait_empty()
