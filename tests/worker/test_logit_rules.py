"""What rules make of a row's logits: masks, bias and penalties, in their order, for each sampler."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.worker.sampling import WIDTH, columns, rules_of
from tests.worker.test_sampler import DRAWS, SAMPLERS, expected_distribution, row_of
from worker.device_io import HostIO, StagedIO
from worker.device_sampler import Sampler
from worker.logit_adjuster import Adjustments
from worker.row_rules import RowRules
from worker.sampler import Sampled, SamplingColumns
from worker.step import RowFlag

IO = {"device": StagedIO(torch.device("cpu"), page_locked=False)}


@pytest.fixture(params=["numpy", "device", max(set(SAMPLERS) - {"numpy", "device"})])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def draw(
    name: str, logits: torch.Tensor, rules: dict[int, RowRules], parameters: SamplingColumns
) -> tuple[Sampled, npt.NDArray[np.int32]]:
    """As the runner does it -> what was sampled, and the flags of all rows."""
    places = np.array(list(rules), np.int64)
    adjustments = Adjustments(places, list(rules.values()), places[parameters.num_logprobs[places] >= 0])
    changed = logits.clone()
    sampled = SAMPLERS[name](changed, parameters, adjustments.apply(changed, IO.get(name, HostIO())))
    flags = np.where(sampled.finite, RowFlag.OK, RowFlag.NON_FINITE).astype(np.int32)
    adjustments.flag(flags)
    return sampled, flags


def greedy(name: str, logits: list[float], rules: RowRules) -> int | RowFlag:
    """The token of a single row, or why it has none."""
    sampled, flags = draw(name, torch.tensor([logits]), {0: rules}, columns(1))
    return int(sampled.tokens[0]) if sampled.finite[0] else RowFlag(flags[0])


DESCENDING = [float(WIDTH - token) for token in range(WIDTH)]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, 0),
        ({"allowed_token_ids": [7, 5]}, 5),
        ({"bad_words": ((0,), (1,))}, 2),
        ({"output": [4, 9], "bad_words": ((9, 0), (4, 9, 1), (4, 2), (8, 9, 2))}, 2),
        ({"output": [9], "bad_words": ((8, 9, 0),)}, 0),
        ({"prompt": [9], "bad_words": ((9, 0),)}, 0),  # of the output alone
        ({"min_tokens": 3, "masked_token_ids": [0, 1], "output": [5, 5]}, 2),
        ({"min_tokens": 2, "masked_token_ids": [0, 1], "output": [5, 5]}, 0),
        ({"logit_bias": {3: 3.5}}, 3),
        ({"logit_bias": {3: 1.5, 0: -1.5}}, 1),
        ({"logit_bias": {0: -100, 1: -100}}, 2),
        ({"allowed_token_ids": [7, 5], "logit_bias": {0: 100, 7: 2.5}}, 7),
        ({"output": [0, 0, 1], "presence_penalty": 2.5}, 2),
        ({"output": [0, 0, 0, 1], "frequency_penalty": 0.7}, 1),
        ({"prompt": [0, 1], "presence_penalty": 2, "frequency_penalty": 2}, 0),
        ({"prompt": [0], "output": [1], "repetition_penalty": 1.3}, 2),
        ({"output": [11], "frequency_penalty": -2, "presence_penalty": -2}, 0),
        ({"output": [11] * 6, "frequency_penalty": -2}, 11),
        ({"output": [3], "repetition_penalty": 0.74, "logit_bias": {3: -0.15}}, 0),  # the bias is penalised, too
        ({"allowed_token_ids": [7], "output": [0, 1], "repetition_penalty": 1e-30}, 7),
        ({"allowed_token_ids": [7], "bad_words": ((7,),)}, RowFlag.DEAD_END),
        ({"bad_words": tuple((token,) for token in range(WIDTH))}, RowFlag.DEAD_END),
        ({"min_tokens": 1, "masked_token_ids": [7], "allowed_token_ids": [7]}, RowFlag.DEAD_END),
    ],
)
def test_a_rule_decides_the_greedy_token(name: str, rules: dict[str, Any], expected: int) -> None:
    assert greedy(name, DESCENDING, rules_of(**rules)) == expected


def test_a_negative_logit_is_multiplied_by_the_repetition_penalty(name: str) -> None:
    logits = [-1.0, -1.5, *[-5.0] * (WIDTH - 2)]
    assert greedy(name, logits, rules_of(output=[0], repetition_penalty=1.4)) == 0
    assert greedy(name, logits, rules_of(output=[0], repetition_penalty=1.6)) == 1


def penalised_by_hand(logits: list[float], prompt: list[int], num_tokens: int, **values: float) -> list[int]:
    """The greedy output, from the definition of the penalties."""
    output: list[int] = []
    for _ in range(num_tokens):
        counts = Counter(output)
        adjusted = list(logits)
        for token in set(prompt) | set(output):
            logit = adjusted[token]
            repetition = values.get("repetition_penalty", 1.0)
            logit = logit / repetition if logit > 0 else logit * repetition
            logit -= values.get("frequency_penalty", 0.0) * counts[token]
            adjusted[token] = logit - values.get("presence_penalty", 0.0) * (counts[token] > 0)
        output.append(int(np.argmax(adjusted)))
    return output


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 0.9},
        {"frequency_penalty": 0.35},
        {"repetition_penalty": 1.9},
        {"presence_penalty": -0.4, "frequency_penalty": 0.45, "repetition_penalty": 0.93},
    ],
)
def test_penalties_follow_the_output_and_are_rebuilt_from_it(name: str, penalties: dict[str, float]) -> None:
    logits = [1.5, 0.3, 1.1, -0.2, 0.9, 0.7, *[-4.0] * (WIDTH - 6)]
    prompt = [2, 3]
    expected = penalised_by_hand(logits, prompt, 40, **penalties)
    output: list[int] = []
    kept = rules_of(prompt, **penalties)
    for index in range(40):
        if index % 7 == 6:  # as an admission after a preemption does
            kept = rules_of(prompt, output, **penalties)
        token = greedy(name, logits, kept)
        kept.append(token)
        output.append(token)
    assert output == expected
    assert len(set(output)) > 1


COMBINATIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 4},
    {"temperature": 1.0, "top_p": 0.75},
    {"temperature": 1.2, "min_p": 0.15},
    {"temperature": 1.0, "logit_bias": {0: 1.5, 3: -2.0}},
    {"temperature": 0.8, "logit_bias": {6: 4.0}, "top_k": 3},
    {"temperature": 1.3, "logit_bias": {1: -100.0, 4: 2.0}, "top_p": 0.8, "min_p": 0.05, "top_k": 6},
]


def test_frequencies_of_all_kinds_of_rows_in_one_batch(name: str) -> None:
    logits = np.array([0.3, 2.0, -1.0, 1.5, 0.0, 1.2, -3.0, 0.9, -2.0, 0.1, -1.5, 0.6], np.float32)
    rows = DRAWS * len(COMBINATIONS)
    neutral = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    each = [{**neutral, **combination} for combination in COMBINATIONS for _ in range(DRAWS)] + [neutral]
    rules = {}
    for number, combination in enumerate(COMBINATIONS):
        if bias := combination.get("logit_bias"):
            shared = rules_of(logit_bias=bias)
            rules |= dict.fromkeys(range(number * DRAWS, (number + 1) * DRAWS), shared)
    parameters = columns(
        rows + 1,
        seeds=list(range(1, rows + 2)),
        output_index=7,
        **{field: [row[field] for row in each] for field in neutral},
    )
    sampled, _ = draw(name, torch.from_numpy(np.tile(logits, (rows + 1, 1))), rules, parameters)
    assert sampled.tokens[-1] == logits.argmax()
    for number, combination in enumerate(COMBINATIONS):
        biased = logits.astype(np.float64)
        for token, bias in combination.get("logit_bias", {}).items():
            biased[token] += bias
        settings = {field: combination.get(field, neutral[field]) for field in neutral}
        expected = expected_distribution(biased, **settings)
        frequencies = np.bincount(sampled.tokens[number * DRAWS :][:DRAWS], minlength=logits.size) / DRAWS
        assert set(np.flatnonzero(frequencies)) <= set(np.flatnonzero(expected)), combination
        assert np.abs(frequencies - expected).max() < 0.03, combination


def test_logprobs_are_raw_whatever_the_rules(name: str) -> None:
    logits = torch.randn((2, WIDTH), generator=torch.Generator().manual_seed(3))
    parameters = columns(2, num_logprobs=[2, 2])
    best = int(logits[0].argmax())
    rules = rules_of(logit_bias={4: 50.0}, allowed_token_ids=[token for token in range(WIDTH) if token != best])
    sampled, _ = draw(name, logits, {0: rules}, parameters)
    reference = torch.log_softmax(logits, dim=1)
    assert sampled.tokens[0] == 4
    assert sampled.logprobs == pytest.approx(reference[[0, 1], sampled.tokens.tolist()].numpy(), abs=1e-5)
    assert sampled.top_tokens.tolist() == logits.topk(2).indices.flatten().tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_ends_alone_whatever_is_masked(name: str, bad: float) -> None:
    logits = torch.tensor([DESCENDING] * 4)
    logits[1, 9] = logits[2, 9] = bad
    rules = {
        0: rules_of(bad_words=((0,),)),
        1: rules_of(allowed_token_ids=[3]),  # masks the culprit
        2: rules_of(allowed_token_ids=[3], bad_words=((3,),)),  # and has no token besides
        3: rules_of(allowed_token_ids=[3], bad_words=((3,),)),
    }
    sampled, flags = draw(name, logits, rules, columns(4))
    assert flags.tolist() == [RowFlag.OK, RowFlag.NON_FINITE, RowFlag.NON_FINITE, RowFlag.DEAD_END]
    assert sampled.tokens.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("width", [97, 49_152])
def test_neighbours_with_rules_change_no_bit_of_a_row(name: str, width: int) -> None:
    sample: Sampler = SAMPLERS[name]
    logits = torch.randn((4, width), generator=torch.Generator().manual_seed(6)) * 3
    parameters = columns(4, temperature=[0, 1, 0.7, 1], top_p=[1, 1, 0.9, 1], num_logprobs=[3, 2, -1, 0], seeds=9)
    ruled = rules_of(output=[1, 2, 2], frequency_penalty=1.0, logit_bias={5: 3.0})
    masked = rules_of(allowed_token_ids=list(range(0, width, 3)), width=width)
    alone = sample(logits, parameters)
    together, _ = draw(name, logits, {1: ruled, 3: masked}, parameters)
    assert [row_of(together, place) for place in (0, 2)] == [row_of(alone, place) for place in (0, 2)]
