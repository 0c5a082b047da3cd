"""Philox against the published vectors of Random123, and the draws built on it."""

from __future__ import annotations

import numpy as np
import pytest

from worker.philox import gumbel_of_tokens, gumbel_of_vocabulary, philox

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_words_equal_the_published_vectors(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    c0 = np.array([counter[0]], np.uint32)
    got = philox(c0, *counter[1:], key=key[0] | key[1] << 32)
    assert tuple(int(word[0]) for word in got) == words


@pytest.mark.parametrize("width", [1, 255, 256, 1000, 1024, 5000])
def test_a_vocabulary_draws_what_its_tokens_draw_alone(width: int) -> None:
    whole = gumbel_of_vocabulary(width, seed=2**63 + 5, output_index=7)
    assert whole.shape == (width,)
    for token in {0, width // 2, width - 1}:
        assert gumbel_of_tokens(np.array([token]), 2**63 + 5, 7)[0] == whole[token]
    assert np.array_equal(gumbel_of_tokens(np.arange(width), 2**63 + 5, 7), whole)


def test_the_draw_is_the_documented_function_of_its_word() -> None:
    token, seed, output_index = 3 * 1024 + 2 * 256 + 17, 99, 5
    words = philox(np.array([3 << 8 | 17], np.uint32), output_index, 0, 0, seed)
    uniform = (int(words[2][0] >> 9) + 0.5) * 2.0**-23
    assert gumbel_of_tokens(np.array([token]), seed, output_index)[0] == pytest.approx(-np.log(-np.log(uniform)), 1e-5)


def test_seed_index_and_token_all_matter_and_noise_is_gumbel() -> None:
    base = gumbel_of_vocabulary(4096, 1, 1)
    for other in (
        gumbel_of_vocabulary(4096, 2, 1),
        gumbel_of_vocabulary(4096, 1, 2),
        gumbel_of_vocabulary(4096, 1 << 32, 1),
    ):
        assert not (base == other).any()
    noise = np.concatenate([gumbel_of_vocabulary(50_000, seed, 0) for seed in range(8)])
    assert np.isfinite(noise).all()
    # Mean and variance of the standard Gumbel distribution.
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)
