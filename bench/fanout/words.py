"""Token ids whose texts tell which step they are of: words of four characters, a space first.

vLLM's OpenAI server streams text. As all words are equally long and follow each other in a known order, the text of an
answer says how many tokens came and whether one is missing.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

LENGTH = 4
_SPACE = "Ġ"  # in the alphabet of a byte-level tokenizer


@lru_cache(maxsize=1)
def words(model: Path) -> tuple[list[int], list[str]]:
    """Ids and texts in the order of steps, from a model's tokenizer.json."""
    vocabulary: dict[str, int] = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    found = sorted(
        (token_id, " " + piece[1:])
        for piece, token_id in vocabulary.items()
        if len(piece) == LENGTH and piece[0] == _SPACE and piece[1:].isascii() and piece[1:].isalpha()
    )
    return [token_id for token_id, _ in found], [text for _, text in found]
