"""Builds the table from token id to bytes that the detokenizer reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from tokenizers import Tokenizer

from scheduler.frontend.detokenizer import byte_alphabet
from scheduler.frontend.errors import UnsupportedModelError

METASPACE: Final = "▁"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def build_token_bytes(backend: Tokenizer) -> tuple[bytes, ...]:
    """Bytes per id; ids that the vocabulary leaves out have none. Added tokens stand for themselves.

    Unlike the tokenizer's own decode, a SentencePiece-like token keeps its leading space at the start of a text: what
    is decoded here continues a prompt. Raises UnsupportedModelError where the kind of tokenizer is not known.
    """
    decode = _token_decoder(backend)
    added = backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        table[token_id] = _utf8(token) if token_id in added else decode(token)
    return tuple(table)


def _token_decoder(backend: Tokenizer) -> Callable[[str], bytes]:
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    steps = state["decoders"] if state.get("type") == "Sequence" else [state]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()
        return lambda token: _byte_level(token, alphabet)
    if "Metaspace" in kinds or any(step.get("pattern") == {"String": METASPACE} for step in steps):
        return _metaspace_or_byte if "ByteFallback" in kinds else _metaspace
    found = ", ".join(sorted(str(kind) for kind in kinds if kind)) or "none"
    raise UnsupportedModelError(
        f"tokenizer: decoder {found} is not supported; byte-level BPE (ByteLevel) and SentencePiece-like (Metaspace, "
        "ByteFallback) are"
    )


def _byte_level(token: str, alphabet: dict[str, int]) -> bytes:
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:  # a token from outside the alphabet; tokenizers takes it literally, too
        return _utf8(token)


def _metaspace(token: str) -> bytes:
    return _utf8(token.replace(METASPACE, " "))


def _metaspace_or_byte(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else _metaspace(token)


def _utf8(token: str) -> bytes:
    return token.encode("utf-8", errors="surrogateescape")
