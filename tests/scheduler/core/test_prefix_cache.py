"""The tree from prefixes to blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from scheduler.core.prefix_cache import PrefixCache, PrefixNode, token_bytes

WIDTH = 8  # bytes of a block of two tokens


def insert(cache: PrefixCache, blocks: Sequence[int], token_ids: Sequence[int], *, salt: str = "") -> list[PrefixNode]:
    """Makes the blocks of one sequence findable; each holds two of its tokens. Returns their places."""
    return cache.insert(cache.root(salt), token_bytes(token_ids), WIDTH, list(blocks), "tenant")


def find(cache: PrefixCache, token_ids: Sequence[int], *, salt: str = "") -> list[int]:
    return [node.block for node in cache.find(salt, token_bytes(token_ids), WIDTH)]


def test_what_is_found_is_equal_from_the_first_token_on() -> None:
    cache = PrefixCache()
    insert(cache, [7, 8], [1, 2, 3, 4])
    assert find(cache, [1, 2, 3, 4]) == [7, 8]
    assert find(cache, [1, 2, 3, 5]) == [7]
    assert find(cache, [3, 4]) == []
    assert find(cache, [3, 4, 1, 2]) == []
    assert find(cache, [1, 2, 1, 2]) == [7]


def test_nothing_is_found_under_another_salt() -> None:
    cache = PrefixCache()
    insert(cache, [7], [1, 2], salt="a")
    insert(cache, [8], [1, 2], salt="b")
    assert [find(cache, [1, 2], salt=salt) for salt in ("a", "b", "")] == [[7], [8], []]


def test_token_ids_keep_their_width() -> None:
    assert token_bytes([1, 256]) != token_bytes([256, 1])
    assert len(token_bytes([0])) == len(token_bytes([2**32 - 1])) == 4


def test_the_first_block_with_a_prefix_stays_the_one_that_is_found() -> None:
    cache = PrefixCache()
    first = insert(cache, [7], [1, 2])
    assert insert(cache, [8], [1, 2]) == first
    assert find(cache, [1, 2]) == [7]
    assert not cache.holds(8)
    assert len(cache) == 1


def test_a_dropped_block_is_forgotten_and_its_prefix_free_for_another() -> None:
    cache = PrefixCache()
    insert(cache, [7], [1, 2])
    cache.drop([7])
    cache.drop([7])
    assert find(cache, [1, 2]) == []
    assert len(cache) == 0
    insert(cache, [8], [1, 2])
    assert find(cache, [1, 2]) == [8]


def test_a_chain_that_lost_its_middle_is_whole_again_once_that_is_computed_anew() -> None:
    cache = PrefixCache()
    insert(cache, [0, 1, 2], [1, 2, 3, 4, 5, 6])
    cache.drop([1])
    assert find(cache, [1, 2, 3, 4, 5, 6]) == [0]
    insert(cache, [0, 9], [1, 2, 3, 4])
    assert find(cache, [1, 2, 3, 4, 5, 6]) == [0, 9, 2]


def test_what_follows_a_place_that_left_the_tree_is_found_below_the_place_that_took_over() -> None:
    cache = PrefixCache()
    insert(cache, [0, 1], [1, 2, 3, 4])
    held = cache.find("", token_bytes([1, 2, 3, 4]), WIDTH)
    cache.drop([1])
    cache.drop([0])
    insert(cache, [5], [1, 2])
    cache.insert(held[1], token_bytes([5, 6]), WIDTH, [2], "tenant")
    assert find(cache, [1, 2, 3, 4]) == [5], "the second block is not there"
    insert(cache, [5, 6], [1, 2, 3, 4])
    assert find(cache, [1, 2, 3, 4, 5, 6]) == [5, 6, 2]


def test_a_place_that_comes_back_below_one_with_a_tail_is_not_there_twice() -> None:
    cache = PrefixCache()
    insert(cache, [0, 1], [1, 2, 3, 4])
    held = cache.find("", token_bytes([1, 2, 3, 4]), WIDTH)
    cache.drop([1, 0])
    insert(cache, [5, 6, 7], [1, 2, 3, 4, 5, 6])
    cache.insert(held[1], token_bytes([8, 8]), WIDTH, [2], "tenant")
    assert find(cache, [1, 2, 3, 4, 5, 6]) == [5, 6, 7]
    assert find(cache, [1, 2, 3, 4, 8, 8]) == [5, 6, 2]


@pytest.mark.parametrize("branch", range(1, 5))
def test_a_branch_off_a_chain_leaves_both_findable(branch: int) -> None:
    cache = PrefixCache()
    chain = [1, 1, 2, 2, 3, 3, 4, 4]
    other = [*chain[: 2 * branch], *[9] * (8 - 2 * branch), 9, 9]
    insert(cache, [0, 1, 2, 3], chain)
    insert(cache, [10, 11, 12, 13, 14], other)
    assert find(cache, chain) == [0, 1, 2, 3]
    assert find(cache, other) == [*range(branch), *range(10 + branch, 15)]
    assert len(cache) == 4 + 5 - branch


def test_a_chain_grows_from_where_its_sequence_holds_it() -> None:
    cache = PrefixCache()
    tokens = [1, 1, 2, 2, 3, 3, 4, 4]
    held = insert(cache, [0, 1], tokens[:4])
    rest = token_bytes(tokens[2 * len(held) :])
    for _ in range(2):  # what is offered again changes nothing
        cache.insert(held[-1], rest, WIDTH, list(range(len(held), 4)), "tenant")
        assert len(cache) == 4
    assert find(cache, tokens) == [0, 1, 2, 3]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_chain_may_be_dropped_in_any_order(order: tuple[int, ...]) -> None:
    cache = PrefixCache()
    tokens = [1, 1, 2, 2, 3, 3, 4, 4]
    held = insert(cache, [0, 1, 2, 3], tokens)[0]
    for count, block in enumerate(order, 1):
        cache.drop([block])
        left = set(range(4)).difference(order[:count])
        assert set(cache.below(held)) == set(cache.indexed_blocks()) == left
        assert len(find(cache, tokens)) == min(order[:count])
    assert not held.in_tree


def test_a_block_is_its_own_tenant_s_wherever_it_hangs() -> None:
    cache = PrefixCache()
    first = cache.insert(cache.root("s"), token_bytes([1, 1]), WIDTH, [0], "a")
    cache.insert(first[0], token_bytes([2, 2, 3, 3]), WIDTH, [1, 2], "b")
    assert [cache.owner(block) for block in range(4)] == [("a", "s"), ("b", "s"), ("b", "s"), None]
    cache.find("s", token_bytes([1, 1, 2, 2]), WIDTH)
    assert [cache.owner(block) for block in range(4)] == [("a", "s"), ("b", "s"), ("b", "s"), None]


def test_a_place_that_left_with_its_root_comes_back() -> None:
    cache = PrefixCache()
    held = insert(cache, [0], [1, 2], salt="s")
    cache.drop([0])
    cache.insert(held[0], token_bytes([3, 4]), WIDTH, [1], "tenant")
    insert(cache, [2], [1, 2], salt="s")
    assert find(cache, [1, 2, 3, 4], salt="s") == [2, 1]


def test_all_branches_that_begin_with_a_block_are_found_even_where_a_link_is_missing() -> None:
    cache = PrefixCache()
    first = insert(cache, [0, 1, 2], [1, 1, 2, 2, 3, 3])[0]
    insert(cache, [0, 3], [1, 1, 4, 4])
    other = insert(cache, [4], [9, 9])[0]
    cache.drop([1])
    assert sorted(cache.below(first)) == [0, 2, 3]
    assert cache.below(other) == [4]
    for block in (0, 2, 3):
        cache.drop([block])
    assert cache.below(first) == []


def test_nothing_is_left_behind_when_all_blocks_are_dropped() -> None:
    cache = PrefixCache()
    held = [insert(cache, [number, number + 50], [1, 2, 3, 4], salt=str(number)) for number in range(3)]
    for block in cache.indexed_blocks():
        cache.drop([block])
    assert len(cache) == 0
    assert not any(node.in_tree or node.children for nodes in held for node in nodes)
    for number in range(3):
        assert cache.root(str(number)) is not held[number][0].parent, "the root of a salt that nobody uses stayed"


@pytest.mark.parametrize("looked_up", list(itertools.product((False, True), repeat=3)))
def test_the_order_of_what_lies_below_a_block_does_not_tell_who_was_looked_for(looked_up: tuple[bool, ...]) -> None:
    """Blocks that are distrusted become free in this order, and plans must not depend on calls that only look."""
    cache = PrefixCache()
    chains = {(0, 1, 2): [1, 1, 2, 2, 3, 3], (0, 3): [1, 1, 4, 4], (0, 4, 5): [1, 1, 5, 5, 6, 6]}
    for (blocks, token_ids), look in zip(chains.items(), looked_up, strict=True):
        places = insert(cache, blocks, token_ids)
        if look:
            assert find(cache, token_ids) == list(blocks)
    assert cache.below(places[0]) == [0, 4, 5, 3, 1, 2]
