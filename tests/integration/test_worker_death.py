"""kill -9 of a worker: with another one in time, every stream goes on; without, every call ends."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from clients import Delta, DeltaStream, UnavailableError
from clients.results import join
from tests.integration.checksums import assert_closed_form
from tests.integration.harness import Cluster, cluster, collect
from tests.oracle.tokenizer import byte_ids
from tests.oracle.uniform import UniformOracle

POOL = ["--num-gpu-blocks-override", "128"]
OUTPUT = 500
PROMPTS = ["The worker dies while I am read", "So it does for me, with another seed", "And for me" * 12]
# Greedy, and drawn with a seed; the third has no seed of its own in the request and still must not repeat an index.
SAMPLING: list[dict[str, float]] = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.7}]


def submit(server: Cluster, index: int) -> DeltaStream:
    sampling = SAMPLING[index]
    return server.generate(
        PROMPTS[index],
        temperature=sampling["temperature"],
        seed=int(sampling["seed"]) if "seed" in sampling else None,
        max_tokens=OUTPUT,
        ignore_eos=True,
        logprobs=5,
    )


def test_streams_go_on_with_a_restarted_worker(uniform: UniformOracle, uniform_model: Path, tmp_path: Path) -> None:
    with cluster(uniform_model, tmp_path, worker_args=POOL, scheduler_args=["--worker-grace", "60"]) as server:
        undisturbed = [collect(submit(server, index)) for index in range(2)]
        streams = [submit(server, index) for index in range(3)]
        heads = [list(islice(stream, 10)) for stream in streams]
        server.worker.kill()
        server.worker.start()
        for index, (head, stream) in enumerate(zip(heads, streams, strict=True)):
            completion = join(stream.request_id, [*head, *stream], stream.usage)
            assert len(completion.token_ids) == OUTPUT
            assert_closed_form(uniform, byte_ids(PROMPTS[index]), completion)
            if index < len(undisturbed):
                assert completion.token_ids == undisturbed[index].token_ids
                assert completion.text == undisturbed[index].text
        stats = server.wait_empty()
        assert stats.worker.restarts == 1
        assert stats.counters.recomputed_tokens > 0


def test_a_second_death_is_survived_too(uniform: UniformOracle, uniform_model: Path, tmp_path: Path) -> None:
    with cluster(uniform_model, tmp_path, worker_args=POOL, scheduler_args=["--worker-grace", "60"]) as server:
        stream = submit(server, 1)
        deltas: list[Delta] = []
        for _ in range(2):
            deltas += islice(stream, 10)
            server.worker.kill()
            server.worker.start()
        completion = join("", [*deltas, *stream], stream.usage)
        assert len(completion.token_ids) == OUTPUT
        assert_closed_form(uniform, byte_ids(PROMPTS[1]), completion)
        assert server.wait_empty().worker.restarts == 2


def test_without_a_worker_calls_end_with_unavailable(uniform_model: Path, tmp_path: Path) -> None:
    args = ["--worker-grace", "0.5", "--max-num-seqs", "2"]
    with cluster(uniform_model, tmp_path, worker_args=POOL, scheduler_args=args) as server:
        streams = [submit(server, index) for index in range(2)]
        for stream in streams:
            next(stream)  # both rows are taken
        streams.append(submit(server, 2))
        server.wait_for(lambda stats: stats.queues.waiting == 1, "the third waits")
        server.worker.kill()
        for stream in streams:
            with pytest.raises(UnavailableError, match=r"worker"):
                collect(stream)
        server.wait_for(lambda stats: not stats.worker.connected, "the loss of the worker is shown")
        assert not server.scheduler.serving()

        # Late is better than never: with a worker again, new requests are served.
        server.worker.start()
        server.scheduler.wait_serving()
        assert len(server.complete("Anyone there?", max_tokens=5, ignore_eos=True).token_ids) == 5
