"""Sampling parameters over the whole way: what penalties, masks and seeds give does not change with preemption,
swapping, neighbours or the death of a worker.

The lookup oracle's logits are known, so the greedy output under any rules is written down here by their definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from clients import Delta, InvalidRequestError, OctavoError
from clients.results import join
from tests.integration.harness import Cluster, cluster, collect
from tests.oracle.lookup import SHAPE, LookupOracle
from tests.oracle.tokenizer import EOS, VOCAB_SIZE, byte_ids

MARGIN = 5.0
BLOCK = 16
NUM_BLOCKS = 20
# A cycle through sixteen ids, and everything else leads into it.
ORACLE = LookupOracle({token: (5 * token + 1) % 16 for token in range(256)} | {EOS: 3}, margin=MARGIN)
BLOCK_BYTES = 2 * SHAPE.num_layers * SHAPE.num_kv_heads * SHAPE.head_dim * 4 * BLOCK


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ORACLE.write(tmp_path_factory.mktemp("lookup"))


@pytest.fixture(scope="module", params=["recompute", "swap"])
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With too few blocks for four sequences of 200 tokens."""
    pool = ["--num-gpu-blocks-override", str(NUM_BLOCKS), "--swap-space", str(2 * NUM_BLOCKS * BLOCK_BYTES)]
    arguments = ["--preemption-mode", request.param, "--worker-grace", "60"]
    with cluster(model, tmp_path_factory.mktemp(request.param), worker_args=pool, scheduler_args=arguments) as running:
        yield running


def greedy_output(prompt: list[int], num_tokens: int, rules: dict[str, Any]) -> list[int]:
    """By the definition of each parameter, on the oracle's logits."""
    output: list[int] = []
    bad_words = [byte_ids(text) for word in rules.get("bad_words", ()) for text in (word, f" {word}")]
    while len(output) < num_tokens:
        logits = np.zeros(VOCAB_SIZE)
        logits[ORACLE.successors[(prompt + output)[-1]]] = MARGIN
        for token, bias in rules.get("logit_bias", {}).items():
            logits[token] += bias
        counts = Counter(output)
        repetition = rules.get("repetition_penalty", 1.0)
        for token in {*prompt, *output}:
            logits[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
            logits[token] -= rules.get("frequency_penalty", 0.0) * counts[token]
            logits[token] -= rules.get("presence_penalty", 0.0) * (counts[token] > 0)
        for word in bad_words:
            if output[len(output) - len(word) + 1 :] == word[:-1]:
                logits[word[-1]] = -np.inf
        if len(output) < rules.get("min_tokens", 0):
            logits[[EOS, EOS + 1]] = -np.inf
        if allowed := rules.get("allowed_token_ids"):
            logits[[token for token in range(VOCAB_SIZE) if token not in allowed]] = -np.inf
        output.append(int(logits.argmax()))
    return output


RULES: list[dict[str, Any]] = [
    {"frequency_penalty": 0.83, "presence_penalty": 0.31, "logit_bias": {90: 2.9, 91: 2.3}},
    {"repetition_penalty": 1.7, "frequency_penalty": 0.07, "logit_bias": {200: 2.95, 40: 0.4}},
    {"presence_penalty": 1.9, "frequency_penalty": 0.21, "allowed_token_ids": [*range(14), *range(60, 80)]},
    {
        "bad_words": ["\x06\x0f", "\x0c", "\x03\x00\x01"],
        "min_tokens": 120,
        "logit_bias": {EOS: 20.0, 45: 0.1},
        "frequency_penalty": 0.5,
    },
]
PROMPTS = [[65 + i, *range(100 + i, 160 + i)] for i in range(4)]
OUTPUT = 140


@pytest.mark.parametrize("worker_dies", [False, True])
def test_rules_give_the_exact_greedy_tokens_whatever_happens(server: Cluster, worker_dies: bool) -> None:
    before = server.stats().counters.preemptions
    streams = [
        server.generate(token_ids=prompt, max_tokens=OUTPUT, ignore_eos=number != 3, **rules)
        for number, (prompt, rules) in enumerate(zip(PROMPTS, RULES, strict=True))
    ]
    heads = [list(islice(stream, 5)) for stream in streams]
    if worker_dies:
        server.worker.kill()
        server.worker.start()
    for prompt, rules, head, stream in zip(PROMPTS, RULES, heads, streams, strict=True):
        completion = join("", [*head, *stream], stream.usage)
        expected = greedy_output(prompt, OUTPUT, rules)
        if EOS in expected:  # masked until min_tokens, then sure
            assert expected.index(EOS) == rules["min_tokens"]
            expected = expected[: expected.index(EOS) + 1]
        else:
            assert len(set(expected)) > 10, "the rules lead away from the oracle's cycle"
        assert list(completion.token_ids) == expected
    assert server.wait_empty().counters.preemptions > before


SEEDED: dict[str, Any] = {
    "temperature": 1.3,
    "top_p": 0.97,
    "top_k": 200,
    "min_p": 0.001,
    "frequency_penalty": 0.4,
    "logit_bias": {30: 1.0},
    "seed": 2**63 + 11,
    "ignore_eos": True,
}


def test_a_seed_repeats_itself_in_every_company(server: Cluster) -> None:
    prompt = PROMPTS[0]
    alone = server.complete(token_ids=prompt, max_tokens=OUTPUT, **SEEDED).token_ids
    assert len(set(alone)) > 40
    assert server.complete(token_ids=prompt, max_tokens=32, **SEEDED).token_ids == alone[:32]
    assert server.complete(token_ids=prompt, max_tokens=32, **(SEEDED | {"seed": 3})).token_ids != alone[:32]
    before = server.stats().counters.preemptions
    streams = [
        server.generate(token_ids=prompt, max_tokens=OUTPUT, **SEEDED),
        server.generate(token_ids=PROMPTS[1], max_tokens=OUTPUT, temperature=1.0, ignore_eos=True),
        server.generate(token_ids=PROMPTS[2], max_tokens=OUTPUT, **(SEEDED | {"seed": 5, "logprobs": 3})),
        server.generate(token_ids=prompt, max_tokens=OUTPUT, **SEEDED),
    ]
    heads = [list(islice(stream, 5)) for stream in streams]
    server.worker.kill()
    server.worker.start()
    outputs = [join("", [*head, *stream], stream.usage).token_ids for head, stream in zip(heads, streams, strict=True)]
    assert outputs[0] == outputs[3] == alone
    assert server.wait_empty().counters.preemptions > before


def test_samples_draw_as_requests_with_the_next_seeds(server: Cluster) -> None:
    together = server.complete(token_ids=PROMPTS[0], max_tokens=20, n=3, **SEEDED)
    for index, choice in enumerate(together.choices):
        seeded = SEEDED | {"seed": SEEDED["seed"] + index}
        assert choice.token_ids == server.complete(token_ids=PROMPTS[0], max_tokens=20, **seeded).token_ids


def test_a_request_that_nothing_is_left_for_ends_after_its_text(server: Cluster) -> None:
    """The bad word masks the only token that is allowed, once what comes before it is there."""
    neighbour = server.generate(token_ids=PROMPTS[1], max_tokens=30, ignore_eos=True, **RULES[1])
    stream = server.generate(token_ids=PROMPTS[0], max_tokens=30, allowed_token_ids=[97], bad_words=["aaaa"])
    seen: list[Delta] = []
    with pytest.raises(OctavoError, match="leave no token to go on with") as error:
        seen.extend(stream)
    assert "".join(delta.text for delta in seen) == "aaa"
    assert error.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert list(collect(neighbour).token_ids) == greedy_output(PROMPTS[1], 30, RULES[1])
    server.wait_empty()


def test_a_request_that_can_never_draw_is_refused_by_name(server: Cluster) -> None:
    with pytest.raises(InvalidRequestError, match=r"sampling_params\.allowed_token_ids: has 320 at index 0"):
        server.complete("x", allowed_token_ids=[VOCAB_SIZE])
