"""Turns token ids into text, one sequence's worth at a time.

Ids become bytes through a table, bytes become text through an incremental UTF-8 decoder that holds back an incomplete
character. So a delta never holds half a character, costs O(1) per token, and never depends on the prompt.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from typing import Final

_UTF8: Final = codecs.getincrementaldecoder("utf-8")


def byte_alphabet() -> dict[str, int]:
    """The GPT-2 alphabet: one printable character per byte value. Source: openai/gpt-2, encoder.py."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


class Detokenizer:
    """Text of one sequence. Undecodable bytes become U+FFFD, as they do in the tokenizers' own decode.

    token_bytes: bytes per id; ids beyond it (a logits width padded past the vocabulary) have no text.
    skipped: ids that have no text, the special tokens or nothing.
    """

    def __init__(self, token_bytes: Sequence[bytes], skipped: Collection[int] = ()) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = _UTF8("replace")

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        table, skipped = self._token_bytes, self._skipped
        size = len(table)
        return self._decoder.decode(b"".join(table[i] for i in token_ids if i < size and i not in skipped))

    def flush(self) -> str:
        """What is left at the end: nothing, or one U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)
