"""The workloads are what the tables say they are, and the same for everybody who makes them."""

import statistics
import subprocess
import sys

import pytest

from bench.workload import CASES, KV_CACHE_TOKENS, MAX_MODEL_LEN, WORKLOADS, select


def _lengths(name: str, batch: int = 0) -> list[tuple[int, int]]:
    return [(len(request.prompt), request.num_output) for request in CASES[name].requests(batch, 1)]


@pytest.mark.parametrize(
    ("name", "batch", "lengths"),
    [
        ("W2", 0, [(128, 128)]),
        ("W3-on", 0, [(544, 32)] * 64),
        ("W3-off", 0, [(544, 32)] * 64),
        ("W4@8", 0, [(128, 1)] * 8),
        ("W4@8", 1, [(128, 128)] * 8),
        ("W4@32", 1, [(128, 128)] * 32),
        ("W5", 0, [(4000, 64)]),
    ],
)
def test_lengths_are_exact(name: str, batch: int, lengths: list[tuple[int, int]]) -> None:
    assert _lengths(name, batch) == lengths


def test_mixed_lengths_have_the_means_and_bounds_of_the_table() -> None:
    prompts, outputs = zip(*_lengths("W1"), strict=True)
    assert len(prompts) == 64
    assert statistics.mean(prompts) == pytest.approx(168, abs=1)
    assert statistics.mean(outputs) == pytest.approx(98, abs=1)
    assert min(prompts) >= 16
    assert max(prompts) <= 512
    assert min(outputs) >= 16
    assert max(outputs) <= 256


def test_lengths_do_not_change_from_round_to_round_but_ids_do() -> None:
    first, second = (CASES["W1"].requests(0, number) for number in (1, 2))
    assert [len(request.prompt) for request in first] == [len(request.prompt) for request in second]
    assert not {request.prompt for request in first} & {request.prompt for request in second}


def test_requests_share_a_prefix_only_where_the_workload_is_about_that() -> None:
    for case in WORKLOADS:
        requests = [request for batch in range(len(case.batches)) for request in case.requests(batch, 1)]
        if case.name.startswith("W3"):
            assert len({request.prompt[:512] for request in requests}) == 1
            assert len({request.prompt[512:] for request in requests}) == 64
        else:
            assert len({request.prompt[:16] for request in requests}) == len(requests)


def test_every_batch_fits_the_engines_at_once() -> None:
    for case in WORKLOADS:
        for batch in range(len(case.batches)):
            totals = [len(request.prompt) + request.num_output for request in case.requests(batch, 1)]
            assert max(totals) <= MAX_MODEL_LEN
            assert sum(-(-total // 32) * 32 for total in totals) <= KV_CACHE_TOKENS


def test_other_interpreters_make_the_same_requests() -> None:
    program = "from bench.workload import CASES; print(CASES['W3-on'].requests(0, 2)[5].prompt[510:])"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(CASES["W3-on"].requests(0, 2)[5].prompt[510:])


def test_select_takes_names_and_their_beginnings_in_the_order_of_the_table() -> None:
    assert [case.name for case in select("W4,W2")] == ["W2", "W4@8", "W4@16", "W4@32"]
    assert [case.name for case in select("W3-on")] == ["W3-on"]
    assert select("") == list(WORKLOADS)


@pytest.mark.parametrize("name", ["W", "W9", "warm-up-on", "W4@"])
def test_select_refuses_what_is_no_workload(name: str) -> None:
    with pytest.raises(ValueError, match=f"no workload is named '{name}'"):
        select(name)
