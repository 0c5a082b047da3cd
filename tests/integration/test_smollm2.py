"""Forty requests at once on a real model: what each gets is what transformers says, and what it gets alone.

The pool fits about a third of them, so that admission, chunked prefill, preemption and recompute all take part, with
one plan in flight, with two, and with results that always come after the next plan is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import REPOSITORY
from tests.integration.reference import assert_greedy, english_prompts, load_reference

MODEL = REPOSITORY / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCK = 16
OUTPUT = 48
# Around the edges of blocks, and up to 600.
LENGTHS = (
    *(1, 2, 3, 5, 8, 11, 14, 15, 16, 17, 18, 23, 30, 31, 32, 33, 34, 40, 46, 47, 48, 49, 50, 58, 63, 64, 65, 72, 79),
    *(80, 81, 95, 96, 97, 120, 128, 160, 240, 330, 600),
)
POOL = sum(-(-(length + OUTPUT) // BLOCK) for length in LENGTHS) // 3

pytestmark = [
    pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL} is absent: `make demo` fetches it"),
    pytest.mark.timeout(1200),  # a real model on whatever cores there are; a hang ends each call earlier
]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    assert len(LENGTHS) == 40
    return english_prompts(MODEL, LENGTHS)


@pytest.fixture(scope="module")
def reference() -> Iterator[LlamaForCausalLM]:
    """On one thread: where other processes run as well, the others' spinning makes it many times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_reference(MODEL)
    torch.set_num_threads(threads)


def submit_all(server: Cluster, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    streams = [server.generate(token_ids=ids, max_tokens=OUTPUT, ignore_eos=True, timeout=240) for ids in prompts]
    return [collect(stream).token_ids for stream in streams]


@pytest.fixture(scope="module")
def alone(
    prompts: list[list[int]], reference: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[int, ...]]:
    """Output ids of each prompt run alone, each checked against transformers."""
    logs = tmp_path_factory.mktemp("alone")
    args = ["--no-enable-prefix-caching"]
    with cluster(MODEL, logs, worker_args=["--num-gpu-blocks-override", "128"], scheduler_args=args) as server:
        outputs = [server.complete(token_ids=ids, max_tokens=OUTPUT, ignore_eos=True).token_ids for ids in prompts]
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output) == OUTPUT
        assert_greedy(reference, prompt, output)
    return outputs


def test_the_same_prompt_again_is_cached_and_answered_the_same(prompts: list[list[int]], tmp_path: Path) -> None:
    prompt = prompts[LENGTHS.index(330)]
    with cluster(MODEL, tmp_path, worker_args=["--num-gpu-blocks-override", "64"]) as server:
        first, second = (
            server.complete(token_ids=prompt, max_tokens=16, ignore_eos=True, logprobs=2) for _ in range(2)
        )
    assert first.usage is not None
    assert second.usage is not None
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 320)
    assert second.token_ids == first.token_ids
    for before, after in zip(first.logprobs, second.logprobs, strict=True):
        assert after.logprob == pytest.approx(before.logprob, abs=1e-4)


@pytest.mark.parametrize(
    ("plans_in_flight", "withhold"), [(1, False), (2, False), (2, True)], ids=["one-plan", "two-plans", "withheld"]
)
def test_forty_at_once_equal_each_alone(
    plans_in_flight: int, withhold: bool, prompts: list[list[int]], alone: list[tuple[int, ...]], tmp_path: Path
) -> None:
    scheduler_args = ["--max-plans-in-flight", str(plans_in_flight)]
    worker_args = ["--num-gpu-blocks-override", str(POOL)]
    with cluster(MODEL, tmp_path, worker_args=worker_args, scheduler_args=scheduler_args, withhold=withhold) as server:
        outputs = submit_all(server, prompts)
        stats = server.wait_empty()
    # Equal ids carry transformers' verdict on `alone` over to these.
    different = [len(prompt) for prompt, a, b in zip(prompts, outputs, alone, strict=True) if a != b]
    assert not different, f"ids differ from those alone for prompts of {different} tokens"
    assert stats.blocks.total == POOL
    assert stats.counters.preemptions > 0
    assert stats.counters.generated_tokens == len(LENGTHS) * OUTPUT
    if server.proxy is not None:
        # Withholding must have been the rule: results that no plan followed are those of the last steps.
        assert server.proxy.released_by_plan > 10 * server.proxy.released_by_time
