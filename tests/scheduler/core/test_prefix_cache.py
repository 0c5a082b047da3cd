"""Keys of prefixes, and the index from keys to blocks."""

from __future__ import annotations

from scheduler.core.prefix_cache import PrefixCache, chain_key, root_key, token_bytes


def test_parts_of_a_root_key_do_not_run_into_each_other() -> None:
    parts = [
        (b"", 0, ""),
        (b"ab", 0, "c"),
        (b"a", 0, "bc"),
        (b"abc", 0, ""),
        (b"", 0, "abc"),
        (b"ab", 1, "c"),
        (b"s", 0, ""),
    ]
    assert len({root_key(*part) for part in parts}) == len(parts)


def test_keys_have_at_least_128_bits() -> None:
    root = root_key(b"model", 0, "")
    assert len(root) >= 16
    assert len(chain_key(root, token_bytes([1, 2]))) >= 16


def test_a_chained_key_depends_on_all_before_it() -> None:
    root, other = root_key(b"model", 0, ""), root_key(b"model", 0, "salt")
    first, second = token_bytes([1, 2]), token_bytes([3, 4])
    keys = {
        chain_key(chain_key(root, first), second),
        chain_key(chain_key(root, second), first),
        chain_key(chain_key(other, first), second),
        chain_key(root, second),
        chain_key(root, first + second),
    }
    assert len(keys) == 5


def test_tokens_are_compared_so_a_colliding_key_is_a_miss() -> None:
    cache = PrefixCache()
    cache.insert(b"key", token_bytes([1, 2]), 7, b"key")
    assert cache.find(b"key", token_bytes([1, 2])) == 7
    assert cache.find(b"key", token_bytes([1, 3])) is None
    assert cache.find(b"other", token_bytes([1, 2])) is None


def test_token_ids_keep_their_width() -> None:
    assert token_bytes([1, 256]) != token_bytes([256, 1])
    assert len(token_bytes([0])) == len(token_bytes([2**32 - 1])) == 4


def test_the_first_block_with_a_prefix_stays_the_one_that_is_found() -> None:
    cache = PrefixCache()
    cache.insert(b"key", b"tokens", 7, b"key")
    cache.insert(b"key", b"tokens", 8, b"key")
    assert cache.find(b"key", b"tokens") == 7
    assert 8 not in cache
    assert len(cache) == 1


def test_a_dropped_block_is_forgotten_and_its_prefix_free_for_another() -> None:
    cache = PrefixCache()
    cache.insert(b"key", b"tokens", 7, b"key")
    cache.drop(7)
    cache.drop(7)
    assert cache.find(b"key", b"tokens") is None
    assert len(cache) == 0
    cache.insert(b"key", b"tokens", 8, b"key")
    assert cache.find(b"key", b"tokens") == 8


def test_all_branches_that_begin_with_a_block_are_found_even_where_a_link_is_missing() -> None:
    cache = PrefixCache()
    cache.insert(b"a", b"1", 0, b"a")
    cache.insert(b"ab", b"2", 1, b"a")
    cache.insert(b"abc", b"3", 2, b"a")
    cache.insert(b"ad", b"4", 3, b"a")
    cache.insert(b"x", b"1", 4, b"x")
    cache.drop(1)
    assert cache.beginning_with(b"a") == [0, 2, 3]
    assert cache.beginning_with(b"x") == [4]
    assert cache.beginning_with(b"y") == []
