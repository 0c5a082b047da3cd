"""Turns token ids into text, one sequence's worth at a time.

Ids become bytes through a table, bytes become text through an incremental UTF-8 decoder that holds back an incomplete
character. So a delta never holds half a character, costs O(1) per token, and never depends on the prompt.

`tokenizers` has a DecodeStream for this. It is not used: it finds a delta by decoding some ids before it as well, so
that it gives out text of the prompt where the prompt ends in mid-character, and costs 20 times as much per token.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Self

MARK: Final = "\ufffd"
ONE_MARK_PER_BYTE: Final = "octavo.one_mark_per_byte"
_UTF8: Final = codecs.getincrementaldecoder("utf-8")


def _mark_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return MARK * (error.end - error.start), error.end


codecs.register_error(ONE_MARK_PER_BYTE, _mark_each_byte)


def byte_alphabet() -> dict[str, int]:
    """The GPT-2 alphabet: one printable character per byte value. Source: openai/gpt-2, encoder.py."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


class Detokenizer:
    """The text of a sequence that continues a prompt.

    table: bytes per id; ids beyond it (a logits width padded past the vocabulary) have no text. errors: what becomes of
    bytes that are no UTF-8, by the name of a handler: "replace" for a U+FFFD per broken character as in a byte-level
    tokenizer's own decode, ONE_MARK_PER_BYTE for one per byte as in SentencePiece's.
    """

    def __init__(self, table: Sequence[bytes], *, errors: str = "replace") -> None:
        self._table = table
        self._decoder = _UTF8(errors)
        self._incomplete = False  # whether the decoder holds back the begin of a character

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        table = self._table
        size = len(table)
        return self._decode(b"".join([table[token_id] for token_id in token_ids if token_id < size]))

    def flush(self) -> str:
        """What is left at the end: nothing, or the marks of a character that was never completed."""
        return self._decoder.decode(b"", final=True) if self._incomplete else ""

    def _decode(self, data: bytes) -> str:
        """As the incremental decoder does, which is written in Python; whole characters do not need it."""
        if not self._incomplete:
            try:
                return data.decode()
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(data)
        self._incomplete = bool(self._decoder.getstate()[0])
        return text

    def fork(self) -> Self:
        """A copy that goes on by itself."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._decoder = _UTF8(self._decoder.errors)
        copy._decoder.setstate(self._decoder.getstate())
        return copy


class SlowDetokenizer(Detokenizer):
    """Knows what the common case does not need; looks at every id by itself.

    begins: bytes per id of a token that begins a text, or None where the place does not matter. leading_spaces: how
    many are dropped at the start of the text. spaced: ids that get a space between each other.
    """

    def __init__(
        self,
        table: Sequence[bytes],
        *,
        errors: str = "replace",
        begins: Sequence[bytes] | None = None,
        leading_spaces: int = 0,
        spaced: Collection[int] = (),
    ) -> None:
        super().__init__(table, errors=errors)
        self._begins = begins
        self._leading_spaces = leading_spaces
        self._spaced = spaced
        self._after_spaced = False

    def feed(self, token_ids: Iterable[int]) -> str:
        return self._drop_spaces(self._decode(b"".join(self._pieces(token_ids))))

    def flush(self) -> str:
        return self._drop_spaces(super().flush())

    def _pieces(self, token_ids: Iterable[int]) -> Iterator[bytes]:
        for token_id in token_ids:
            piece = self._table[token_id] if token_id < len(self._table) else b""
            if not piece:
                continue
            if self._begins is not None:
                piece, self._begins = self._begins[token_id], None
            spaced = token_id in self._spaced
            yield b" " + piece if spaced and self._after_spaced else piece
            self._after_spaced = spaced

    def _drop_spaces(self, text: str) -> str:
        while self._leading_spaces and text:
            if not text.startswith(" "):
                self._leading_spaces = 0
                break
            text = text[1:]
            self._leading_spaces -= 1
        return text
