"""Sequences that lose their blocks to others, checked by the uniform oracle: whatever was done to a sequence, attention
read every token of it, and no other's.

Both modes of preemption, swapping with room for one block only, with prefixes that others hold, and with a worker that
dies while sequences lie on its host.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from clients import Completion, DeltaStream, InvalidRequestError, Stats
from clients.results import join
from tests.integration.checksums import assert_closed_form
from tests.integration.harness import Cluster, cluster, collect
from tests.oracle.checkpoint import LlamaShape
from tests.oracle.tokenizer import VOCAB_SIZE
from tests.oracle.uniform import SHAPE, UniformOracle

BLOCK = 16


def block_bytes(shape: LlamaShape) -> int:
    """Bytes of a block of float32 keys and values."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 4 * BLOCK


def worker_args(num_blocks: int, num_host_blocks: int) -> list[str]:
    return [
        "--num-gpu-blocks-override",
        str(num_blocks),
        "--swap-space",
        str(num_host_blocks * block_bytes(SHAPE)),
    ]


def random_prompt(seed: int, length: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(VOCAB_SIZE, size=length).tolist()
    return ids


def submit(server: Cluster, prompt: list[int], *, seed: int, max_tokens: int) -> DeltaStream:
    return server.generate(
        token_ids=prompt, temperature=1.0, seed=seed, max_tokens=max_tokens, ignore_eos=True, logprobs=5
    )


def check(oracle: UniformOracle, prompt: list[int], completion: Completion, num_tokens: int) -> None:
    assert len(completion.token_ids) == num_tokens
    assert_closed_form(oracle, prompt, completion)


def wait_empty(server: Cluster) -> Stats:
    """Nothing is left on the device or the host, and every computed token is accounted for."""
    stats = server.wait_empty()
    assert stats.queues.swapped == 0
    assert stats.host_blocks.free == stats.host_blocks.total
    counters = stats.counters
    assert counters.computed_tokens == counters.kept_tokens + counters.recomputed_tokens + counters.wasted_tokens
    return stats


def are_there(count: int, stats: Stats) -> bool:
    return stats.queues.running + stats.queues.waiting == count


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_preempted_sequence_reads_what_it_would_have_read(
    uniform: UniformOracle, uniform_model: Path, tmp_path: Path, mode: str
) -> None:
    # Each of four grows to 13 blocks, and there are 20.
    args = ["--preemption-mode", mode]
    with cluster(uniform_model, tmp_path, worker_args=worker_args(20, 40), scheduler_args=args) as server:
        assert server.stats().host_blocks.total == 40
        prompts = [random_prompt(3000 + i, 60) for i in range(4)]
        streams = [submit(server, prompt, seed=i, max_tokens=140) for i, prompt in enumerate(prompts)]
        for prompt, stream in zip(prompts, streams, strict=True):
            check(uniform, prompt, collect(stream), 140)
        counters = wait_empty(server).counters
        assert counters.preemptions > 0
        assert counters.preemptions_swap == (counters.preemptions if mode == "swap" else 0)
        assert (counters.swapped_out_blocks > 0) == (counters.swapped_in_blocks > 0) == (mode == "swap")
        if mode == "recompute":
            assert counters.recomputed_tokens > 0


def test_one_host_block_serves_the_one_that_fits_into_it(
    uniform: UniformOracle, uniform_model: Path, tmp_path: Path
) -> None:
    """A large sequence grows where a medium and a small one leave no block. The worker is stopped until all three are
    there, so that they are admitted in the first few steps."""
    args = ["--preemption-mode", "swap"]
    sizes = {"large": (60, 50), "medium": (20, 40), "small": (4, 60)}  # prompt, output
    with cluster(uniform_model, tmp_path, worker_args=worker_args(7, 1), scheduler_args=args) as server:
        server.worker.pause()
        try:
            prompts = [random_prompt(3100 + i, length) for i, (length, _) in enumerate(sizes.values())]
            streams = []
            for prompt, (_, max_tokens) in zip(prompts, sizes.values(), strict=True):
                streams.append(submit(server, prompt, seed=1, max_tokens=max_tokens))
                server.wait_for(partial(are_there, len(streams)), "all so far are there")
        finally:
            server.worker.resume()
        for prompt, stream, (_, max_tokens) in zip(prompts, streams, sizes.values(), strict=True):
            check(uniform, prompt, collect(stream), max_tokens)
        counters = wait_empty(server).counters
        assert 0 < counters.preemptions_swap < counters.preemptions, "one went to the host, one found no room there"
        assert counters.swapped_out_blocks == counters.swapped_in_blocks == counters.preemptions_swap


def test_swapped_sequences_find_their_prefix_where_others_hold_it(
    uniform: UniformOracle, uniform_model: Path, tmp_path: Path
) -> None:
    args = ["--preemption-mode", "swap"]
    with cluster(uniform_model, tmp_path, worker_args=worker_args(24, 40), scheduler_args=args) as server:
        head = random_prompt(3200, 3 * BLOCK)
        prompts = [head + random_prompt(3201 + i, 10) for i in range(4)]
        streams = [submit(server, prompt, seed=i, max_tokens=150) for i, prompt in enumerate(prompts)]
        completions = [collect(stream) for stream in streams]
        for prompt, completion in zip(prompts, completions, strict=True):
            check(uniform, prompt, completion, 150)
        assert sum(one.usage.cached_tokens for one in completions if one.usage) >= 3 * len(head)
        counters = wait_empty(server).counters
        assert 0 < counters.swapped_in_blocks < counters.swapped_out_blocks, "what was found was not copied in again"


def test_a_worker_dies_with_sequences_on_its_host(uniform: UniformOracle, uniform_model: Path, tmp_path: Path) -> None:
    args = ["--preemption-mode", "swap", "--worker-grace", "60"]
    with cluster(uniform_model, tmp_path, worker_args=worker_args(60, 80), scheduler_args=args) as server:
        prompts = [random_prompt(3300 + i, 60) for i in range(4)]
        streams = [submit(server, prompt, seed=i, max_tokens=500) for i, prompt in enumerate(prompts)]
        heads = [list(islice(stream, 3)) for stream in streams]
        server.wait_for(lambda stats: stats.queues.swapped > 0, "a sequence lies on the host")
        server.worker.kill()
        server.worker.start()
        for prompt, head, stream in zip(prompts, heads, streams, strict=True):
            check(uniform, prompt, join(stream.request_id, [*head, *stream], stream.usage), 500)
        stats = wait_empty(server)
        assert stats.worker.restarts == 1
        assert stats.counters.recomputed_tokens > 0


def test_one_that_fills_the_whole_pool_ends_by_length_and_one_block_more_is_refused(
    uniform: UniformOracle, uniform_model: Path, tmp_path: Path
) -> None:
    with cluster(uniform_model, tmp_path, worker_args=worker_args(12, 0)) as server:
        prompt = random_prompt(3400, 100)
        with pytest.raises(InvalidRequestError, match="needs 13 blocks, pool 12"):
            server.complete(token_ids=prompt, max_tokens=94, ignore_eos=True)
        # The KV of the last token is never computed. Two at once take turns.
        streams = [submit(server, prompt, seed=i, max_tokens=93) for i in range(2)]
        for stream in streams:
            completion = collect(stream)
            check(uniform, prompt, completion, 93)
            assert completion.finish_reason is not None and completion.finish_reason.value == "length"
        wait_empty(server)
