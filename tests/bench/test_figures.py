"""From answers to figures."""

from typing import Any

import pytest

from bench.figures import FIGURES, Figure, agreement, compute, without_client


def _batch(seconds: float, token_ids: list[list[int]], **times: list[float]) -> dict[str, Any]:
    return {"seconds": seconds, "token_ids": token_ids, "ttft_s": [], "itl_s": []} | times


def test_output_rate_is_all_tokens_over_the_time_of_the_batch() -> None:
    assert compute("W1", [_batch(2.0, [[1] * 30, [1] * 10])])["tok_s"] == 20


def test_decode_rate_leaves_out_what_prompts_and_first_tokens_take() -> None:
    one_token, all_tokens = _batch(1.5, [[1]] * 8), _batch(3.5, [[1] * 128] * 8)
    assert compute("W4@8", [one_token, all_tokens])["tok_s"] == 8 * 127 / 2.0


def test_the_clients_cpu_time_of_the_same_tokens_is_taken_out_of_the_time_of_all_cores() -> None:
    one_token, all_tokens = _batch(1.5, [[1]] * 8), _batch(3.5, [[1] * 128] * 8)
    one_token["cpu_s"], all_tokens["cpu_s"] = {"client": 0.1, "worker": 2.0}, {"client": 0.9, "worker": 5.0}
    figures = compute("W4@8", [one_token, all_tokens])
    assert (figures["cpu_s_client"], figures["cpu_s_worker"]) == (0.8, 3.0)
    assert without_client(figures, 2) == pytest.approx(8 * 127 / (2.0 - 0.4))
    assert without_client(compute("W1", [all_tokens]), 4) == pytest.approx(8 * 128 / (3.5 - 0.9 / 4))
    assert without_client(compute("W1", [_batch(1.0, [[1]])]), 2) is None


def test_latencies_are_in_milliseconds_and_missing_where_no_token_was_timed() -> None:
    timed = compute("W2", [_batch(1.0, [[1, 2]], ttft_s=[0.05], itl_s=[0.01])])
    assert (timed["ttft_ms"], timed["itl_ms"]) == (50, 10)
    assert "ttft_ms" not in compute("W1", [_batch(1.0, [[1, 2]])])


def test_agreement_counts_first_tokens_and_what_comes_before_the_first_difference() -> None:
    ours = [_batch(1, [[1, 2, 3, 4], [5, 6, 7, 8]])]
    theirs = [_batch(1, [[1, 2, 9, 4], [9, 6, 7, 8]])]
    assert agreement(ours, theirs) == {"first": 0.5, "prefix": 2 / 8}
    assert agreement(ours, ours) == {"first": 1.0, "prefix": 1.0}


@pytest.mark.parametrize(
    ("case", "key", "ratio", "meets"),
    [
        ("W1", "tok_s", 1.6, True),
        ("W1", "tok_s", 1.59, False),
        ("W2", "itl_ms", 0.65, True),
        ("W2", "itl_ms", 0.66, False),
        ("W4@32", "tok_s", 1.99, False),
    ],
)
def test_targets_are_at_least_for_rates_and_at_most_for_times(case: str, key: str, ratio: float, meets: bool) -> None:
    assert _figure(case, key).meets(ratio) is meets


def _figure(case: str, key: str) -> Figure:
    return next(figure for figure in FIGURES if (figure.case, figure.key) == (case, key))
