"""Forty requests at once on a real model: what each gets is what transformers says, and what it gets alone.

The pool fits about a third of them, so that admission, chunked prefill, preemption and recompute all take part. With
one plan in flight, and with results that always come after the next plan is made, every second of them gets the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from clients import Completion
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import REPOSITORY
from tests.integration.reference import assert_greedy, english_prompts, load_reference

MODEL = REPOSITORY / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCK = 16
OUTPUT = 24
# Around the edges of blocks, and up to what does not fit into one step.
LENGTHS = (
    *(1, 2, 3, 5, 8, 11, 14, 15, 16, 17, 18, 23, 30, 31, 32, 33, 34, 40, 46, 47, 48, 49, 50, 58, 63, 64, 65, 72, 79),
    *(80, 81, 95, 96, 97, 112, 127, 128, 129, 200, 320),
)
ALONE = (1, 2, 15, 16, 17, 31, 33, 48, 64, 97, 128, 320)
BUDGET = ["--max-num-batched-tokens", "256"]

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


def at_once(
    prompts: Sequence[Sequence[int]], logs: Path, *, plans_in_flight: int, withhold: bool = False
) -> dict[int, tuple[int, ...]]:
    """Output ids by length of prompt, of services that have too few blocks for all of them."""
    scheduler_args = ["--max-plans-in-flight", str(plans_in_flight), *BUDGET]
    pool = sum(-(-(len(prompt) + OUTPUT) // BLOCK) for prompt in prompts) // 3
    worker_args = ["--num-gpu-blocks-override", str(pool)]
    with cluster(
        MODEL, logs, worker_args=worker_args, scheduler_args=scheduler_args, withhold=withhold, threads=2
    ) as server:
        streams = [server.generate(token_ids=ids, max_tokens=OUTPUT, ignore_eos=True, timeout=240) for ids in prompts]
        outputs = {len(ids): collect(stream).token_ids for ids, stream in zip(prompts, streams, strict=True)}
        stats = server.wait_empty()
    assert stats.blocks.total == pool
    assert stats.counters.preemptions > 0
    assert stats.counters.generated_tokens == len(prompts) * OUTPUT
    if server.proxy is not None:
        # Withholding must have been the rule: results that no plan followed are those of the last steps.
        assert server.proxy.released_by_plan > 10 * server.proxy.released_by_time
    return outputs


@pytest.fixture(scope="module")
def together(prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[int, ...]]:
    """All forty at once, as the services do by default."""
    return at_once(prompts, tmp_path_factory.mktemp("together"), plans_in_flight=2)


def different(outputs: Mapping[int, tuple[int, ...]], others: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Lengths of the prompts in `outputs` that others gave other ids for."""
    return [length for length, output in outputs.items() if output != others[length]]


def test_each_of_forty_gets_what_transformers_says(
    prompts: list[list[int]], together: dict[int, tuple[int, ...]], reference: LlamaForCausalLM
) -> None:
    for prompt in prompts:
        assert len(together[len(prompt)]) == OUTPUT
        assert_greedy(reference, prompt, together[len(prompt)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plans_in_flight", "withhold"), [pytest.param(1, False, id="one-plan"), pytest.param(2, True, id="withheld")]
)
def test_with_another_pipeline_they_get_the_same(
    plans_in_flight: int,
    withhold: bool,
    prompts: list[list[int]],
    together: dict[int, tuple[int, ...]],
    tmp_path: Path,
) -> None:
    outputs = at_once(prompts[::2], tmp_path, plans_in_flight=plans_in_flight, withhold=withhold)
    assert not different(outputs, together)


def test_alone_they_get_the_same_and_again_from_cached_blocks(
    prompts: list[list[int]], together: dict[int, tuple[int, ...]], tmp_path: Path
) -> None:
    args = ["--num-gpu-blocks-override", "128"]
    with cluster(MODEL, tmp_path, worker_args=args, scheduler_args=BUDGET, threads=2) as server:
        alone = {length: complete(server, prompts[LENGTHS.index(length)]) for length in ALONE}
        again = complete(server, prompts[-1])
    assert not different({length: completion.token_ids for length, completion in alone.items()}, together)
    assert [cached_tokens(completion) for completion in alone.values()] == [0] * len(ALONE)
    assert cached_tokens(again) == 304
    assert again.token_ids == together[320]
    for before, after in zip(alone[320].logprobs, again.logprobs, strict=True):
        assert after.logprob == pytest.approx(before.logprob, abs=1e-4)


def complete(server: Cluster, prompt: Sequence[int]) -> Completion:
    return server.complete(token_ids=list(prompt), max_tokens=OUTPUT, ignore_eos=True, logprobs=2)


def cached_tokens(completion: Completion) -> int:
    assert completion.usage is not None
    return completion.usage.cached_tokens
