"""The loads, the same for every contender: fixed seeds, exact lengths, no end by chance. Standard library only."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

BLOCK_SIZE = 16
TOKEN_BUDGET = 8192
MAX_MODEL_LEN = 2048
VOCABULARY = 32768

DECODE_OUTPUT = 320
"""Tokens per request of the decode load: more than its longest fill, warm-up and measured steps together."""
MIXED_OUTPUT = 64
"""Tokens per request of the mixed load: one in 64 running sequences ends in each step, and one arrives for it."""
_SHARED_PROMPTS, _SHARED_LENGTH = 8, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and the number of tokens to generate, past any EOS. `number` is its id."""

    number: int
    prompt: list[int]
    num_output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is run.

    load: "decode" (no prefix caching, nobody arrives or ends while measured) or "mixed" (prefix caching; whoever ends
    is replaced at once by a new request, which shares 256 prompt tokens with an eighth of the others).
    running: sequences at a time. plans_in_flight: steps planned before the result of the first is back, 1 or 2.
    """

    load: Literal["decode", "mixed"]
    running: int
    plans_in_flight: int

    @property
    def num_blocks(self) -> int:
        """Enough that nobody is preempted; in the mixed load few enough that blocks of ended sequences are evicted."""
        return self.running * (32 if self.load == "decode" else 16) + 256

    def requests(self) -> Iterator[Request]:
        """The first `running` are there at the beginning; the mixed load takes more from it, without end."""
        if self.load == "decode":
            return itertools.islice(_decode(), self.running)
        return _mixed(self.running)


def waiting(count: int, num_prompt: int) -> list[Request]:
    """Requests to be kept waiting."""
    return [Request(number=number, prompt=_ids(number, num_prompt), num_output=16) for number in range(count)]


def sampled_token(step: int, place: int) -> int:
    """What the absent model samples: arbitrary, the same for all contenders."""
    return (step * 7919 + place) % VOCABULARY


def _decode() -> Iterator[Request]:
    """Prompts of 97 to 112 tokens, so that a sixteenth of the sequences needs a new block in each step."""
    for number in itertools.count():
        yield Request(number=number, prompt=_ids(number, 97 + number % BLOCK_SIZE), num_output=DECODE_OUTPUT)


def _mixed(running: int) -> Iterator[Request]:
    shared = [_ids(-1 - index, _SHARED_LENGTH) for index in range(_SHARED_PROMPTS)]
    for number in itertools.count():
        prompt = shared[number % _SHARED_PROMPTS] + _ids(number, 32 + number * 5 % 33)
        # The first ones are at every stage of their output, as if they had arrived one after the other.
        num_output = 1 + number * MIXED_OUTPUT // running if number < running else MIXED_OUTPUT
        yield Request(number=number, prompt=prompt, num_output=num_output)


def _ids(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)
