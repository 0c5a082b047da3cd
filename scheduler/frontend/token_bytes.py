"""What each token adds to a text: the tables that the detokenizer reads, made from a tokenizer's decoder.

Only decoders are taken whose every step is understood, so that a text is never silently another than the tokenizer's.
Where the tables deviate from the decode of `tokenizers`, that one is wrong for text that is delivered as it comes:

- Bytes of byte-fallback tokens that are no UTF-8: `tokenizers` replaces every byte of a run of such tokens, valid
  characters among them included, so a later token could undo a delivered character. Here, as in SentencePiece itself,
  valid characters stay and each of the other bytes is one U+FFFD.
- An added token of a byte-level tokenizer is its own text; `tokenizers` reads its characters as bytes where it can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer

from scheduler.frontend.detokenizer import ONE_MARK_PER_BYTE, byte_alphabet
from scheduler.frontend.errors import UnsupportedModelError

METASPACE: Final = "▁"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SUPPORTED: Final = "byte-level BPE (ByteLevel) and SentencePiece-like (Metaspace, Replace, ByteFallback) are"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """table: bytes per id; ids that the vocabulary leaves out have none. errors: as in `Detokenizer`.

    begins, leading_spaces: what is different at the start of a text, as in `SlowDetokenizer`.
    """

    table: tuple[bytes, ...] = ()
    errors: str = "replace"
    begins: tuple[bytes, ...] | None = None
    leading_spaces: int = 0


def build_token_bytes(backend: Tokenizer) -> TokenBytes:
    """Raises UnsupportedModelError where the kind of tokenizer is not known."""
    steps = _steps(backend)
    kinds = {step.get("type") for step in steps}
    added = backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()
        return TokenBytes(
            table=_table(vocabulary, lambda token, id_: _utf8(token) if id_ in added else _byte_level(token, alphabet))
        )
    fallback = "ByteFallback" in kinds
    return TokenBytes(
        table=_table(vocabulary, lambda token, _: _metaspace(token, " ", fallback)),
        errors=ONE_MARK_PER_BYTE if fallback else "replace",
        begins=_table(vocabulary, lambda token, _: _metaspace(token, "", fallback)) if _drops_first(steps) else None,
        leading_spaces=sum(step["start"] for step in steps if step["type"] == "Strip"),
    )


def _steps(backend: Tokenizer) -> list[dict[str, Any]]:
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    steps: list[dict[str, Any]] = state["decoders"] if state.get("type") == "Sequence" else [state] if state else []
    unknown = [step for step in steps if not _is_known(step)]
    kinds = [step["type"] for step in steps]
    if unknown or not any(kind in ("ByteLevel", "Metaspace", "Replace") for kind in kinds):
        found = ", ".join(sorted({str(step["type"]) for step in unknown or steps})) or "none"
        raise UnsupportedModelError(f"tokenizer: decoder {found} is not supported; {_SUPPORTED}")
    return steps


def _is_known(step: dict[str, Any]) -> bool:
    match step["type"]:
        case "ByteLevel" | "ByteFallback" | "Fuse":
            return True
        case "Metaspace":
            return bool(step["replacement"] == METASPACE)
        case "Replace":
            return bool(step["pattern"] == {"String": METASPACE} and step["content"] == " ")
        case "Strip":
            return bool(step["content"] == " " and step["stop"] == 0)
        case _:
            return False


def _drops_first(steps: list[dict[str, Any]]) -> bool:
    """Whether a text's first token has no spaces in front, nor elsewhere, as the Metaspace decoder has it."""
    return any(step["type"] == "Metaspace" and step.get("prepend_scheme") != "never" for step in steps)


def _table(vocabulary: dict[str, int], decode: Callable[[str, int], bytes]) -> tuple[bytes, ...]:
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        table[token_id] = decode(token, token_id)
    return tuple(table)


def _byte_level(token: str, alphabet: dict[str, int]) -> bytes:
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:  # a token from outside the alphabet; tokenizers takes it literally, too
        return _utf8(token)


def _metaspace(token: str, space: str, fallback: bool) -> bytes:
    """Added tokens too: tokenizers has it so, and a vocabulary may list runs of spaces among them."""
    match = _BYTE_TOKEN.fullmatch(token) if fallback else None
    return bytes([int(match[1], 16)]) if match else _utf8(token.replace(METASPACE, space))


def _utf8(token: str) -> bytes:
    return token.encode("utf-8", errors="surrogateescape")
