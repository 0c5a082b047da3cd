"""Logprobs of prompt and output against transformers in float32: cold and warm, in chunks, and through preemption."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from clients import Completion, InvalidRequestError, TokenLogprob
from tests.integration.harness import Cluster, cluster, collect
from tests.oracle.checkpoint import LlamaShape, write_checkpoint
from tests.oracle.tokenizer import VOCAB_SIZE

SHAPE = LlamaShape(hidden=128)
NUM_BLOCKS = 24
TOP = 5

Reference = Callable[[Sequence[int]], torch.Tensor]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("random")
    write_checkpoint(directory, SHAPE, SHAPE.random_tensors(np.random.default_rng(8)))
    return directory


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    """Log probabilities [T, V] of the token after each of T."""
    llama = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)

    def logprobs(token_ids: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            return torch.log_softmax(llama(torch.tensor([token_ids])).logits[0], dim=1)

    return logprobs


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Prompts are computed 48 tokens at a time."""
    with cluster(
        model,
        tmp_path_factory.mktemp("server"),
        worker_args=["--num-gpu-blocks-override", str(NUM_BLOCKS)],
        scheduler_args=["--max-num-batched-tokens", "48", "--max-num-seqs", "8"],
    ) as running:
        yield running


def random_prompt(seed: int, length: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(VOCAB_SIZE, size=length).tolist()
    return ids


def assert_logprobs(entries: Sequence[TokenLogprob], token_ids: Sequence[int], expected: torch.Tensor) -> None:
    """Entries of these tokens; expected [len(token_ids), V]."""
    assert [entry.token_id for entry in entries] == list(token_ids)
    for entry, row in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        values, ids = row.topk(len(entry.top))
        assert [top.token_id for top in entry.top] == ids.tolist()
        assert [top.logprob for top in entry.top] == pytest.approx(values.tolist(), abs=1e-4)


def assert_all_logprobs(reference: Reference, prompt: list[int], completion: Completion) -> None:
    expected = reference([*prompt, *completion.token_ids])
    assert_logprobs(completion.prompt_logprobs, prompt[1:], expected[: len(prompt) - 1])
    assert_logprobs(completion.logprobs, completion.token_ids, expected[len(prompt) - 1 : -1])


@pytest.mark.parametrize("length", [1, 2, 16, 17, 49, 150])
def test_cold_and_warm_in_chunks(server: Cluster, reference: Reference, length: int) -> None:
    prompt = random_prompt(length, length)
    settings = {"max_tokens": 8, "ignore_eos": True, "logprobs": TOP, "prompt_logprobs": TOP}
    for _ in range(2):  # the second time the prefix cache has the prompt
        completion = server.complete(token_ids=prompt, **settings)
        assert_all_logprobs(reference, prompt, completion)
        assert completion.usage is not None and completion.usage.cached_tokens == 0
        assert all(len(entry.top) == TOP for entry in completion.prompt_logprobs)
    plain = server.complete(token_ids=prompt, max_tokens=8, ignore_eos=True)
    assert plain.usage is not None and plain.usage.cached_tokens == (length - 1) // 16 * 16
    assert (plain.token_ids, plain.prompt_logprobs) == (completion.token_ids, ())


def test_a_preempted_request_gets_each_of_them_once(server: Cluster, reference: Reference) -> None:
    before = server.stats().counters.preemptions
    prompts = [random_prompt(70 + i, 60 + i) for i in range(4)]
    streams = [
        server.generate(token_ids=prompt, max_tokens=100, ignore_eos=True, logprobs=0, prompt_logprobs=2)
        for prompt in prompts
    ]
    for prompt, stream in zip(prompts, streams, strict=True):
        assert_all_logprobs(reference, prompt, collect(stream))
    assert server.wait_empty().counters.preemptions > before


def test_samples_of_one_prompt_have_its_logprobs_once(server: Cluster, reference: Reference) -> None:
    prompt = random_prompt(90, 40)
    completion = server.complete(token_ids=prompt, n=3, temperature=1.0, seed=1, max_tokens=4, prompt_logprobs=0)
    assert_logprobs(completion.prompt_logprobs, prompt[1:], reference(prompt)[:-1])


def test_a_prompt_is_scored_without_an_answer(server: Cluster, reference: Reference) -> None:
    text = "The quick brown fox jumps over the lazy dog, and over again. " * 2
    scored = server.client.score_prompt(text, top_logprobs=3, timeout=60)
    assert bytes(scored.token_ids).decode() == text
    assert_logprobs(scored.logprobs, scored.token_ids[1:], reference(scored.token_ids)[:-1])
    assert {len(entry.top) for entry in scored.logprobs} == {3}
    assert server.client.score_prompt("x", timeout=60).logprobs == ()
    server.wait_empty()


def test_a_prompt_to_be_scored_keeps_the_rules_of_a_request(server: Cluster) -> None:
    with pytest.raises(InvalidRequestError, match=r"top_logprobs: is 21, must be in \[0, 20\]"):
        server.client.score_prompt("x", top_logprobs=21, timeout=60)
    with pytest.raises(InvalidRequestError, match=r"token_ids\.ids: is empty"):
        server.client.score_prompt(token_ids=[], timeout=60)
