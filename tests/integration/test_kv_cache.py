"""What attention really read, checked by the uniform oracle: plain, beside others, after a prefix hit.

Sampling at temperature 1 with a seed makes walks that do not repeat themselves; logprobs are raw, so that their closed
form does not depend on what was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clients import DeltaStream
from tests.integration.checksums import assert_closed_form
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import wait_until
from tests.oracle.tokenizer import VOCAB_SIZE
from tests.oracle.uniform import UniformOracle

BLOCK = 16


def random_prompt(seed: int, length: int) -> list[int]:
    """Token ids that no other seed shares a prefix with."""
    ids: list[int] = np.random.default_rng(seed).integers(VOCAB_SIZE, size=length).tolist()
    return ids


def submit(server: Cluster, prompt: list[int], *, seed: int, max_tokens: int) -> DeltaStream:
    return server.generate(
        token_ids=prompt, temperature=1.0, seed=seed, max_tokens=max_tokens, ignore_eos=True, logprobs=5
    )


@pytest.fixture(scope="module")
def server(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(
        uniform_model,
        tmp_path_factory.mktemp("kv-cache"),
        worker_args=["--num-gpu-blocks-override", "256"],
        scheduler_args=["--max-num-batched-tokens", "128"],
    ) as running:
        yield running


@pytest.mark.parametrize("length", [1, 15, 16, 17, 127, 128, 129, 300])
def test_a_plain_run_reads_every_token_once(server: Cluster, uniform: UniformOracle, length: int) -> None:
    prompt = random_prompt(1000 + length, length)
    completion = collect(submit(server, prompt, seed=length, max_tokens=40))
    assert len(completion.token_ids) == 40
    assert_closed_form(uniform, prompt, completion)


def test_neighbours_in_a_batch_do_not_read_each_other(server: Cluster, uniform: UniformOracle) -> None:
    prompts = [random_prompt(2000 + i, 20 * i + 1) for i in range(12)]
    streams = [submit(server, prompt, seed=i, max_tokens=40) for i, prompt in enumerate(prompts)]
    for prompt, stream in zip(prompts, streams, strict=True):
        assert_closed_form(uniform, prompt, collect(stream))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 160, 161])
def test_the_same_prompt_again_is_cached_and_reads_the_same(
    server: Cluster, uniform: UniformOracle, length: int
) -> None:
    prompt = random_prompt(4000 + length, length)
    first, second = (collect(submit(server, prompt, seed=9, max_tokens=20)) for _ in range(2))
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == (length - 1) // BLOCK * BLOCK
    assert second.usage.prompt_tokens == length
    assert second.token_ids == first.token_ids
    for before, after in zip(first.logprobs, second.logprobs, strict=True):
        assert after.logprob == pytest.approx(before.logprob, abs=1e-4)
    assert_closed_form(uniform, prompt, second)


def test_a_generated_answer_is_a_prefix_of_the_next_turn(server: Cluster, uniform: UniformOracle) -> None:
    prompt = random_prompt(5000, 50)
    first = collect(submit(server, prompt, seed=1, max_tokens=50))
    turn = [*prompt, *first.token_ids, *random_prompt(5001, 10)]
    second = collect(submit(server, turn, seed=2, max_tokens=20))
    assert second.usage is not None
    assert second.usage.cached_tokens >= len(prompt) // BLOCK * BLOCK
    assert_closed_form(uniform, turn, second)


def test_a_block_is_reused_only_behind_its_own_prefix(server: Cluster) -> None:
    """The oracle cannot see order, so the count of cached tokens has to show it."""
    first, second, third = (random_prompt(5500 + i, BLOCK) for i in range(3))
    last = [1]
    order = [first + second + third, first + third, second + third, first + second + last, third + second]
    usages = [server.complete(token_ids=ids + last, max_tokens=1, ignore_eos=True).usage for ids in order]
    assert [usage and usage.cached_tokens for usage in usages] == [0, 16, 0, 32, 0]


def test_salts_keep_prompts_apart(server: Cluster) -> None:
    prompt = random_prompt(6000, 64)
    usages = [
        server.complete(token_ids=prompt, max_tokens=1, cache_salt=salt, ignore_eos=True).usage for salt in "aabb"
    ]
    assert [usage and usage.cached_tokens for usage in usages] == [0, 48, 0, 48]


def test_two_equal_prompts_admitted_in_one_step_share_blocks(server: Cluster, uniform: UniformOracle) -> None:
    """A stopped worker holds the pipeline full, so that both wait until one step admits them together."""
    server.wait_empty()
    prompt = random_prompt(7000, 97)
    with submit(server, random_prompt(7001, 16), seed=0, max_tokens=1000) as blocker:
        next(blocker)
        server.worker.pause()
        try:
            steps = [-1, 0]

            def pipeline_is_full() -> bool:
                steps.append(server.stats().counters.steps)
                return len(set(steps[-10:])) == 1

            wait_until(pipeline_is_full, "no more steps are planned while the worker is stopped")
            streams = [submit(server, prompt, seed=i, max_tokens=30) for i in range(2)]
            server.wait_for(lambda stats: stats.queues.waiting == 2, "both wait")
        finally:
            server.worker.resume()
        completions = [collect(stream) for stream in streams]
    assert [c.usage and c.usage.cached_tokens for c in completions] == [0, 96]
    for completion in completions:
        assert_closed_form(uniform, prompt, completion)
    server.wait_empty()
