"""The workloads, for us and for every peer: fixed seeds, random token ids, exact lengths. Standard library only."""

from __future__ import annotations

import random
from dataclasses import dataclass

VOCABULARY = 49152
"""Width of SmolLM2's logits. Ids below 17 are its special tokens and are left out."""
_FIRST_ORDINARY = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and the number of tokens to generate, greedily and past EOS."""

    prompt: tuple[int, ...]
    num_output: int


def streams(count: int, num_prompt: int = 128, num_output: int = 128, seed: int = 4) -> list[Request]:
    """`count` requests of equal lengths that share no prefix, to be sent at once."""
    rng = random.Random(f"streams {seed} {count}")
    return [Request(prompt=_ids(rng, num_prompt), num_output=num_output) for _ in range(count)]


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(_FIRST_ORDINARY, VOCABULARY) for _ in range(count))
