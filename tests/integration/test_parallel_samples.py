"""n > 1 with real processes: the samples of one prompt share its KV, draw and end as each would alone, and are freed
together. The uniform oracle says what each of them read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from clients import Completion, DeltaStream, InvalidRequestError
from clients.results import join
from octavo.serving.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.checksums import assert_closed_form
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.test_kv_cache import random_prompt
from tests.oracle.uniform import UniformOracle

N = 4
SEED = 2**64 - 2  # the seeds of the last two wrap around


@pytest.fixture(scope="module")
def server(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(
        uniform_model,
        tmp_path_factory.mktemp("parallel"),
        worker_args=["--num-gpu-blocks-override", "256"],
        scheduler_args=["--max-num-seqs", str(N), "--max-num-batched-tokens", "64"],
    ) as running:
        yield running


def submit(server: Cluster, prompt: list[int], *, n: int = N, seed: int = SEED, **fields: Any) -> DeltaStream:
    settings: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True, "logprobs": 5, "max_tokens": 40}
    return server.generate(token_ids=prompt, n=n, seed=seed, **(settings | fields))


def assert_as_alone(server: Cluster, prompt: list[int], completion: Completion, **fields: Any) -> None:
    """Each sample is what a request of its own with the next seed gives."""
    assert [choice.index for choice in completion.choices] == list(range(N))
    assert len({choice.token_ids for choice in completion.choices}) == N
    for index, choice in enumerate(completion.choices):
        alone = collect(submit(server, prompt, n=1, seed=(SEED + index) % 2**64, **fields))
        assert choice.token_ids == alone.token_ids
        assert (choice.text, choice.finish_reason, choice.stop_token_id) == (
            alone.text,
            alone.finish_reason,
            alone.stop_token_id,
        )
        for entry, other in zip(choice.logprobs, alone.logprobs, strict=True):
            assert entry.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 150])
def test_samples_read_one_copy_of_the_prompt_and_draw_as_alone(
    server: Cluster, uniform: UniformOracle, length: int
) -> None:
    prompt = random_prompt(8000 + length, length)
    before = server.wait_empty().counters
    completion = collect(submit(server, prompt))
    after = server.wait_empty().counters
    for choice in completion.choices:
        assert len(choice.token_ids) == 40
        assert_closed_form(uniform, prompt, choice)
    usage = completion.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (length, 0, N * 40)
    assert after.forks - before.forks == N - 1
    # The prompt once, its last token again for each of the others, and every output token but the last.
    assert after.computed_tokens - before.computed_tokens == length + N - 1 + N * 39
    assert_as_alone(server, prompt, completion)


def test_a_cached_prompt_is_shared_as_well(server: Cluster, uniform: UniformOracle) -> None:
    prompt = random_prompt(8200, 70)
    first, second = (collect(submit(server, prompt, max_tokens=20)) for _ in range(2))
    assert first.usage is not None
    assert second.usage is not None
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 64)
    for choice, before in zip(second.choices, first.choices, strict=True):
        assert choice.token_ids == before.token_ids
        assert_closed_form(uniform, prompt, choice)


def test_each_sample_has_its_own_end(server: Cluster, uniform: UniformOracle) -> None:
    prompt = random_prompt(8300, 20)
    fields: dict[str, Any] = {"stop_token_ids": list(range(12)), "max_tokens": 60}
    completion = collect(submit(server, prompt, **fields))
    lengths = [len(choice.token_ids) for choice in completion.choices]
    assert len(set(lengths)) > 1
    assert completion.usage is not None
    assert completion.usage.completion_tokens == sum(lengths)
    for choice in completion.choices:
        assert_closed_form(uniform, prompt, choice)
    assert_as_alone(server, prompt, completion, **fields)
    server.wait_empty()


def test_samples_share_blocks_and_cancelling_the_call_frees_them_all(server: Cluster) -> None:
    before = server.wait_empty().counters
    with submit(server, random_prompt(8400, 40), request_id="shared", max_tokens=3000) as stream:
        seen: set[int] = set()
        while len(seen) < N:
            seen.add(next(stream).index)
        with grpc.insecure_channel(server.scheduler.address) as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            tables = [
                admin.GetBlockTable(admin_pb2.GetBlockTableRequest(request_id="shared", index=index)).blocks
                for index in range(N)
            ]
        assert [[block.references for block in table[:3]] for table in tables] == [[N, N, 1]] * N
        assert {tuple(block.block for block in table[:2]) for table in tables} == {
            tuple(block.block for block in tables[0][:2])
        }
        assert len({table[2].block for table in tables}) == N
    after = server.wait_empty().counters
    assert after.finished - before.finished == N


def test_more_samples_than_rows_are_refused(server: Cluster) -> None:
    with pytest.raises(InvalidRequestError, match=f"n is {N + 1}, must be at most {N}") as refused:
        collect(submit(server, [1, 2, 3], n=N + 1))
    assert [violation.field for violation in refused.value.violations] == ["sampling_params.n"]


def test_samples_outlive_their_worker(server: Cluster, uniform: UniformOracle) -> None:
    prompt = random_prompt(8500, 45)
    restarts = server.wait_empty().worker.restarts
    with submit(server, prompt, max_tokens=150) as stream:
        deltas = [next(stream)]
        while {delta.index for delta in deltas} != set(range(N)):
            deltas.append(next(stream))
        server.worker.kill()
        server.worker.start()
        deltas += stream
        completion = join(stream.request_id, deltas, stream.usage)
    assert server.wait_empty().worker.restarts == restarts + 1
    for choice in completion.choices:
        assert len(choice.token_ids) == 150
        assert_closed_form(uniform, prompt, choice)
    assert_as_alone(server, prompt, completion, max_tokens=150)
