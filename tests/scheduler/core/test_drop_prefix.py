"""Probing the prefix cache, and dropping from it."""

from __future__ import annotations

import pytest

from scheduler.core.block_views import BlockState, block_state
from scheduler.core.config import CoreConfig
from scheduler.core.drop_prefix import PrefixSelection
from scheduler.core.probe import PrefixProbe, probe_prefix
from scheduler.core.result import EndReason
from scheduler.core.sequence import SequenceSpec
from tests.scheduler.core.lab import Lab

PROMPT = tuple(range(1, 13))  # three blocks of four, the last of which is never found: it holds the last token


def lab(*, enable_prefix_caching: bool = True) -> Lab:
    return Lab(
        CoreConfig(
            num_blocks=24,
            block_size=4,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            enable_prefix_caching=enable_prefix_caching,
        )
    )


def run(lab: Lab, sequence_id: int, *, finish: bool = True, **fields: str) -> None:
    """Computes the prompt of a sequence, and ends it or lets it run."""
    lab.add(SequenceSpec(sequence_id=sequence_id, prompt=PROMPT, max_tokens=8, **fields))  # type: ignore[arg-type]
    lab.schedule()
    lab.deliver()
    if finish and sequence_id in lab.live:
        lab.finish(sequence_id, EndReason.ABORT)


def cached(lab: Lab, salt: str = "") -> int:
    return probe_prefix(lab.core, PROMPT, salt).num_cached_tokens


def test_a_probe_finds_what_an_admission_would_and_changes_nothing() -> None:
    bench = lab()
    assert probe_prefix(bench.core, PROMPT, "") == PrefixProbe(blocks=(), num_cached_tokens=0, num_cacheable_tokens=8)
    run(bench, 1)
    before = bench.core.snapshot()
    probe = probe_prefix(bench.core, PROMPT, "")
    assert (probe.num_cached_tokens, len(probe.blocks)) == (8, 2)
    assert probe_prefix(bench.core, PROMPT[:4], "").num_cached_tokens == 0
    assert probe_prefix(bench.core, (*PROMPT[:4], 60, 60, 60, 60, 60), "").num_cached_tokens == 4
    assert cached(bench, "pepper") == 0
    assert bench.core.snapshot() == before
    hits = bench.core.counters.prefix_cache_hits
    run(bench, 2)
    assert bench.core.counters.prefix_cache_hits - hits == probe.num_cached_tokens


def test_a_probe_leaves_the_order_of_eviction_alone() -> None:
    probed, untouched = lab(), lab()
    for bench in (probed, untouched):
        run(bench, 1, cache_salt="a")
        run(bench, 2, cache_salt="b")
    cached(probed, "a")
    for bench in (probed, untouched):
        # Needs all blocks but the last released ones: the salt that was released first is evicted.
        bench.add(SequenceSpec(sequence_id=3, prompt=tuple([50] * 84), max_tokens=1))
        while bench.live:
            bench.schedule()
            bench.deliver()
    assert (cached(probed, "a"), cached(probed, "b")) == (cached(untouched, "a"), cached(untouched, "b"))
    assert cached(probed, "a") < cached(probed, "b")


def test_nothing_is_cacheable_without_prefix_caching() -> None:
    bench = lab(enable_prefix_caching=False)
    run(bench, 1)
    assert probe_prefix(bench.core, PROMPT, "").num_cacheable_tokens == 0


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (PrefixSelection(), set()),
        (PrefixSelection(cache_salt="pepper"), {"", "mint"}),
        (PrefixSelection(cache_salt=""), {"pepper", "mint"}),
        (PrefixSelection(tenant="acme"), {""}),
        (PrefixSelection(tenant="acme", cache_salt="mint"), {"", "pepper"}),
        (PrefixSelection(tenant="nobody"), {"", "pepper", "mint"}),
    ],
)
def test_only_what_is_selected_goes(selection: PrefixSelection, left: set[str]) -> None:
    bench = lab()
    run(bench, 1)
    run(bench, 2, cache_salt="pepper", tenant="acme")
    run(bench, 3, cache_salt="mint", tenant="acme")
    before = bench.core.snapshot().num_cached_blocks
    dropped, kept = bench.core.drop_prefix(selection)
    assert {salt for salt in ("", "pepper", "mint") if cached(bench, salt)} == left
    assert kept == 0
    after = bench.core.snapshot()
    assert before - after.num_cached_blocks == dropped
    assert after.num_free_blocks + after.num_cached_blocks == 24
    bench.check()


def test_blocks_in_use_are_kept_and_counted() -> None:
    bench = lab()
    run(bench, 1, cache_salt="a")
    run(bench, 2, cache_salt="b", finish=False)
    assert 2 in bench.live
    (running,) = bench.core.snapshot().running
    dropped, kept = bench.core.drop_prefix(PrefixSelection())
    assert dropped >= 2 and kept == 3
    assert cached(bench, "a") == 0
    assert cached(bench, "b") == 8
    pool = bench.core.blocks.pool
    assert {block_state(pool, block) for block in running.blocks} == {BlockState.REFERENCED}
    bench.drain()  # the lab compares the tokens with those of an undisturbed run
    bench.check_empty()
