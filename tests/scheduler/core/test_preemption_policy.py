"""The costs that decide who is preempted, and how."""

from __future__ import annotations

from typing import Literal

import pytest

from scheduler.core.live import LiveSequence
from scheduler.core.preemption_policy import Candidate, PreemptionPolicy, Rates
from scheduler.core.sequence import SequenceSpec

BLOCK = 16


def policy(
    mode: Literal["auto", "recompute", "swap"] = "auto", *, tokens_per_s: int = 1000, bytes_per_s: int = 1_000_000
) -> PreemptionPolicy:
    """A block is 1000 bytes. By default 16 tokens take 16 ms, and a block there and back 2 ms."""
    made = PreemptionPolicy(mode, block_size=BLOCK, bytes_per_block=1000)
    made.rates = Rates(prefill_tokens_per_s=tokens_per_s, copy_bytes_per_s=bytes_per_s)
    return made


def candidate(sequence_id: int, num_computed: int, num_freed: int) -> Candidate:
    spec = SequenceSpec(sequence_id=sequence_id, prompt=(1,), max_tokens=1)
    return Candidate(LiveSequence(spec, arrival=sequence_id), num_computed, num_freed)


@pytest.mark.parametrize(
    ("bytes_per_s", "swaps"),
    [
        (125_001, True),
        (125_000, False),  # a block there and back in 16 ms, as long as computing its tokens anew
        (1_000, False),
    ],
)
def test_auto_swaps_only_what_is_cheaper_to_copy(bytes_per_s: int, swaps: bool) -> None:
    assert policy(bytes_per_s=bytes_per_s).choose([candidate(1, 16, 1)], 8)[1] is swaps


def test_a_partial_block_is_copied_whole() -> None:
    # 17 tokens take 17 ms to compute, 2 blocks at 125,000 bytes/s 32 ms to copy.
    assert policy(bytes_per_s=125_001).choose([candidate(1, 17, 2)], 8)[1] is False


@pytest.mark.parametrize(
    ("mode", "num_computed", "num_host_free", "swaps"),
    [
        ("swap", 32, 2, True),
        ("swap", 33, 2, False),
        ("swap", 16, 0, False),
        ("swap", 0, 8, False),
        ("auto", 32, 2, True),
        ("auto", 33, 2, False),
        ("recompute", 32, 8, False),
    ],
)
def test_swapping_declines_without_host_blocks_or_anything_to_copy(
    mode: Literal["auto", "recompute", "swap"], num_computed: int, num_host_free: int, swaps: bool
) -> None:
    assert policy(mode).choose([candidate(1, num_computed, 3)], num_host_free)[1] is swaps


def test_mode_swap_does_not_ask_for_the_cost() -> None:
    assert policy("swap", bytes_per_s=1).choose([candidate(1, 16, 1)], 1)[1] is True


def test_the_victim_costs_least_per_block_that_becomes_available() -> None:
    # 64 ms for 4 blocks, 48 ms for 1 (the rest is shared), 40 ms for 2.
    candidates = [candidate(1, 64, 4), candidate(2, 48, 1), candidate(3, 40, 2)]
    victim, swaps = policy("recompute").choose(candidates, 8)
    assert (victim.sequence.spec.sequence_id, swaps) == (1, False)


def test_each_is_weighed_in_the_mode_that_is_cheaper_for_it() -> None:
    large, small = candidate(1, 112, 8), candidate(2, 8, 1)
    # The 7 blocks with KV there and back take 70 ms, 8.75 per block freed; 8 tokens anew take 8 ms.
    assert policy(bytes_per_s=200_000).choose([large, small], 8) == (small, False)
    # 46.7 ms, 5.8 per block freed; the small one's block there and back takes 6.7.
    assert policy(bytes_per_s=300_000).choose([large, small], 8) == (large, True)


def test_ties_take_the_last_in_order_of_service() -> None:
    victim, _ = policy("recompute").choose([candidate(1, 16, 1), candidate(2, 16, 1), candidate(3, 32, 1)], 8)
    assert victim.sequence.spec.sequence_id == 2


def test_one_that_frees_nothing_is_the_last_resort() -> None:
    free_of_cost, dear = candidate(1, 0, 0), candidate(2, 100_000, 1)
    assert policy().choose([dear, free_of_cost], 0)[0] is dear
    assert policy().choose([free_of_cost, dear], 0)[0] is dear
    assert policy().choose([free_of_cost], 0)[0] is free_of_cost


def test_costs_are_integers_however_large() -> None:
    huge = candidate(1, 10**12, 10**6)
    assert policy(tokens_per_s=3, bytes_per_s=7).choose([huge, candidate(2, 10**12 + 3, 10**6)], 0)[0] is huge
