"""The sampler: its order, its distributions, and that a row never depends on its neighbours."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.cpu.library import available_instruction_sets
from tests.worker.sampling import columns, mixed_rows
from worker.backend.cpu_backend import CpuBackend
from worker.backend.native_sampler import NativeSampler
from worker.device_io import StagedIO
from worker.device_sampler import DeviceSampler, Sampler
from worker.sampler import Sampled, SamplingColumns
from worker.sampler import sample as sample_in_numpy

DRAWS = 3000
SAMPLERS: dict[str, Sampler] = {
    "numpy": sample_in_numpy,
    "device": DeviceSampler(StagedIO(torch.device("cpu"), page_locked=False)),
    **{isa: NativeSampler(CpuBackend(num_threads=2, instruction_set=isa)) for isa in available_instruction_sets()},
}


@pytest.fixture(params=SAMPLERS)
def sample(request: pytest.FixtureRequest) -> Sampler:
    return SAMPLERS[request.param]


def expected_distribution(
    logits: npt.NDArray[np.float64], temperature: float, top_k: int, top_p: float, min_p: float
) -> npt.NDArray[np.float64]:
    """The exact distribution, token by token, written for clarity."""
    weights = np.exp((logits - logits.max()) / temperature)
    kept = {int(token) for token in np.flatnonzero(weights >= min_p)}
    by_rank = sorted(kept, key=lambda token: (-weights[token], token))
    if top_k:
        by_rank = by_rank[:top_k]
    target = top_p * sum(weights[token] for token in by_rank)
    nucleus, reached = [], 0.0
    for token in by_rank:
        nucleus.append(token)
        reached += weights[token]
        if reached >= target - 1e-9:
            break
    probabilities = np.zeros_like(weights)
    probabilities[nucleus] = weights[nucleus]
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (2.0, 0, 1.0, 0.0),
        (1.0, 3, 1.0, 0.0),
        (1.0, 100, 1.0, 0.0),
        (1.0, 0, 0.8, 0.0),
        (1.0, 0, 0.01, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.3, 5, 0.9, 0.0),
        (0.8, 6, 0.7, 0.05),
    ],
)
def test_frequencies_follow_the_exact_distribution(
    sample: Sampler, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.array([0.3, 2.0, -1.0, 1.5, 0.0, 1.2, -3.0, 0.9], np.float32)
    drawn = sample(
        torch.from_numpy(np.tile(logits, (DRAWS, 1))),
        columns(
            DRAWS,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seeds=11,
            output_index=list(range(DRAWS)),
        ),
    ).tokens
    frequencies = np.bincount(drawn, minlength=logits.size) / DRAWS
    expected = expected_distribution(logits.astype(np.float64), temperature, top_k, top_p, min_p)
    assert set(np.flatnonzero(frequencies)) <= set(np.flatnonzero(expected))
    assert np.abs(frequencies - expected).max() < 0.03


def row_of(sampled: Sampled, place: int) -> tuple[int, bytes, bytes, bytes]:
    """What a row got, with floats as bits."""
    num_top = sampled.num_top if sampled.num_top.size else np.zeros_like(sampled.tokens)
    start = int(num_top[:place].sum())
    part = slice(start, start + int(num_top[place]))
    logprob = sampled.logprobs[place : place + 1] if sampled.logprobs.size else np.zeros(1, np.float32)
    return (
        int(sampled.tokens[place]),
        logprob.tobytes(),
        sampled.top_tokens[part].tobytes(),
        sampled.top_logprobs[part].tobytes(),
    )


@pytest.mark.parametrize("sample", [name for name in SAMPLERS if name != "device"], indirect=True)
@pytest.mark.parametrize("width", [97, 49_152])
def test_a_row_alone_and_in_any_batch_is_the_same_bit_for_bit(sample: Sampler, width: int) -> None:
    logits, rows = mixed_rows(width)
    together = [row_of(sample(logits, rows), place) for place in range(8)]
    for order in ([0], [1], [2], [3], [4], [5], [6], [7], [7, 6, 5, 4, 3, 2, 1, 0], [4, 1], [2, 6, 3]):
        subset = SamplingColumns(**{name: getattr(rows, name)[order] for name in SamplingColumns.__slots__})
        sampled = sample(logits[order].clone(), subset)
        assert [row_of(sampled, place) for place in range(len(order))] == [together[i] for i in order]


PARAMETERS = list(itertools.product((0.3, 1.0, 2.0), (0, 1, 40, 900), (1.0, 0.95, 0.2), (0.0, 0.01)))
"""temperature, top_k, top_p, min_p"""


@pytest.mark.parametrize("width", [97, 2_500, 49_152])
@pytest.mark.parametrize("peak", [1.0, 3.0])
@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "numpy"])
def test_all_samplers_agree(name: str, peak: float, width: int) -> None:
    rows = len(PARAMETERS)
    logits = torch.randn((rows, width), generator=torch.Generator().manual_seed(5)) * peak
    temperature, top_k, top_p, min_p = map(list, zip(*PARAMETERS, strict=True))
    wanted = columns(
        rows,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        num_logprobs=[row % 7 - 1 if row else width for row in range(rows)],
        seeds=[2**64 - 1 - row for row in range(rows)],
        output_index=list(range(rows)),
    )
    expected, actual = sample_in_numpy(logits, wanted), SAMPLERS[name](logits, wanted)
    for column in ("finite", "tokens", "num_top", "top_tokens"):
        assert getattr(actual, column).tolist() == getattr(expected, column).tolist(), column
    for column in ("logprobs", "top_logprobs"):
        assert getattr(actual, column) == pytest.approx(getattr(expected, column), abs=1e-5), column


def test_ties_go_to_the_lowest_id(sample: Sampler) -> None:
    flat = torch.zeros((1, 64))
    assert sample(flat, columns(1)).tokens.tolist() == [0]
    for index in range(50):
        assert sample(flat, columns(1, temperature=1.0, top_k=3, output_index=index)).tokens[0] < 3
        assert sample(flat, columns(1, temperature=1.0, top_p=0.1, output_index=index)).tokens[0] < 7
    top = sample(flat, columns(1, num_logprobs=4))
    assert top.top_tokens.tolist() == [0, 1, 2, 3]


def test_logprobs_are_the_raw_log_softmax(sample: Sampler) -> None:
    logits, rows = mixed_rows(500)
    sampled = sample(logits, rows)
    reference = torch.log_softmax(logits, dim=1)
    start = 0
    for place, asked in enumerate(rows.num_logprobs.tolist()):
        token = int(sampled.tokens[place])
        expected = float(reference[place, token]) if asked >= 0 else 0.0
        assert sampled.logprobs[place] == pytest.approx(expected, abs=1e-5)
        count = int(sampled.num_top[place])
        assert count == max(asked, 0)
        values, ids = reference[place].topk(count)
        assert sampled.top_tokens[start : start + count].tolist() == ids.tolist()
        assert sampled.top_logprobs[start : start + count] == pytest.approx(values.numpy(), abs=1e-5)
        start += count
    assert start == sampled.top_tokens.size == sampled.top_logprobs.size


def test_no_logprobs_asked_gives_empty_columns(sample: Sampler) -> None:
    sampled = sample(torch.randn(3, 20), columns(3))
    assert sampled.logprobs.size == sampled.num_top.size == sampled.top_tokens.size == sampled.top_logprobs.size == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_leaves_its_neighbours_alone(sample: Sampler, bad: float, temperature: float) -> None:
    logits = torch.randn((3, 40), generator=torch.Generator().manual_seed(1))
    rows = columns(3, temperature=temperature, num_logprobs=2, seeds=[1, 2, 3])
    well = sample(logits, rows)
    logits[1, 17] = bad
    sampled = sample(logits, rows)
    assert sampled.finite.tolist() == [True, False, True]
    assert sampled.tokens.tolist() == [well.tokens[0], 0, well.tokens[2]]
    # The columns of logprobs cover the rows that have a token.
    assert sampled.logprobs.tolist() == well.logprobs[[0, 2]].tolist()
    assert sampled.top_tokens.tolist() == well.top_tokens[[0, 1, 4, 5]].tolist()


def test_huge_finite_logits_are_finite(sample: Sampler) -> None:
    logits = torch.full((1, 1000), 3e38)
    logits[0, 3] = 3.2e38
    assert sample(logits, columns(1)).tokens.tolist() == [3]


def test_a_tiny_temperature_is_as_good_as_greedy(sample: Sampler) -> None:
    logits = torch.randn((1, 300), generator=torch.Generator().manual_seed(2))
    best = int(logits.argmax())
    for temperature in (1e-3, 1e-30, 1e-300):
        for index in range(20):
            assert sample(logits, columns(1, temperature=temperature, output_index=index)).tokens.tolist() == [best]


def test_no_rows_give_no_tokens(sample: Sampler) -> None:
    sampled = sample(torch.empty((0, 50)), columns(0))
    assert sampled.tokens.size == sampled.finite.size == 0
