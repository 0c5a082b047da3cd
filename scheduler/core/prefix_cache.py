"""The index from prefix keys to blocks.

A block's key is a hash over its parent's key and its own token ids, so it stands for the whole prefix up to its end.
The chain starts from a root that covers the model, the adapter and the caller's salt; every part is typed and
length-prefixed, so no two different inputs give the same bytes. On a hit the token ids are compared besides: a
colliding hash is a miss.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import NamedTuple

BYTES_PER_TOKEN = 4
_DIGEST_BYTES = 16


def root_key(model_key: bytes, adapter_id: int, cache_salt: str) -> bytes:
    """The key that the first block of such a sequence chains from."""
    digest = blake2b(digest_size=_DIGEST_BYTES, person=b"octavo-prefix")
    for kind, part in ((b"m", model_key), (b"a", adapter_id.to_bytes(8, "big")), (b"s", cache_salt.encode())):
        digest.update(kind + len(part).to_bytes(8, "big") + part)
    return digest.digest()


def chain_key(parent: bytes, token_bytes: bytes) -> bytes:
    """The key of a full block that follows `parent`. All blocks hold equally many tokens, so no length is needed."""
    return blake2b(parent + token_bytes, digest_size=_DIGEST_BYTES).digest()


def token_bytes(token_ids: list[int]) -> bytes:
    """Token ids in a fixed-width form, for hashing and comparing."""
    return array("I", token_ids).tobytes()


class PrefixEntry(NamedTuple):
    """What an indexed block holds. first_key: that of the chain's first block. tenant, cache_salt: of the sequence that
    computed it; tenants share blocks under equal salts, so others may use it too."""

    key: bytes
    tokens: bytes
    first_key: bytes
    tenant: str
    cache_salt: str


class PrefixCache:
    """Which block holds which prefix. A key names one block at most, a block has one key at most."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._entry_of: dict[int, PrefixEntry] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block: int) -> bool:
        return block in self._entry_of

    def find(self, key: bytes, tokens: bytes) -> int | None:
        """The block that holds exactly this prefix, or None."""
        block = self._block_of.get(key)
        if block is None or self._entry_of[block].tokens != tokens:
            return None
        return block

    def entry(self, block: int) -> PrefixEntry | None:
        """What is known of a block; None if it is not indexed."""
        return self._entry_of.get(block)

    def indexed_blocks(self) -> list[int]:
        """All blocks that can be found, in the order in which they were indexed."""
        return list(self._entry_of)

    def insert(
        self, key: bytes, tokens: bytes, block: int, first_key: bytes, *, tenant: str = "", cache_salt: str = ""
    ) -> None:
        """Makes a block findable, unless its prefix is already found elsewhere. The arguments are `PrefixEntry`'s."""
        if key not in self._block_of and block not in self._entry_of:
            self._block_of[key] = block
            self._entry_of[block] = PrefixEntry(key, tokens, first_key, tenant, cache_salt)

    def beginning_with(self, first_key: bytes) -> list[int]:
        """All blocks whose chain has this first block, whichever branch they are on."""
        return [block for block, entry in self._entry_of.items() if entry.first_key == first_key]

    def drop(self, block: int) -> None:
        """Forgets a block; one that is not indexed is ignored."""
        entry = self._entry_of.pop(block, None)
        if entry is not None:
            del self._block_of[entry.key]
