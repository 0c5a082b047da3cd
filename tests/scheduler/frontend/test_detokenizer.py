"""The detokenizer against the tokenizers' own decode, and at every cut of a text."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer as Backend

from scheduler.frontend.detokenizer import Detokenizer
from scheduler.frontend.gguf_tokenizer import read_gguf
from scheduler.frontend.tokenizer import Tokenizer
from tests.scheduler.frontend.conftest import SMOLLM2

SCRIPTS = (
    (0x20, 0x7E),
    (0xA0, 0x24F),
    (0x370, 0x3FF),
    (0x4E00, 0x9FFF),
    (0x1F300, 0x1FAFF),
    (0x0, 0xD7FF),
    (0xE000, 0x10FFFF),
)
MIXED = "Grüße 👩‍👩‍👧‍👦 日本 🇫🇷, naïve — ∑ 🦊🦊 end"


@pytest.fixture(scope="module")
def backend() -> Backend:
    found = read_gguf(SMOLLM2).backend
    assert found is not None
    return found


def random_text(generator: random.Random) -> str:
    ranges = generator.choices(SCRIPTS, k=generator.randrange(1, 30))
    return "".join(chr(generator.randint(*limits)) for limits in ranges)


def whole(detokenizer: Detokenizer, ids: list[int]) -> str:
    return "".join(detokenizer.feed([token_id]) for token_id in ids) + detokenizer.flush()


def test_random_unicode_survives_the_round_trip(smollm2: Tokenizer) -> None:
    # The vocabulary lacks a few rare bytes; what has them is lost on the way in, in transformers as well.
    known = {token[0] for token in smollm2.token_bytes if len(token) == 1}
    assert len(known) > 230
    generator = random.Random(1)
    for _ in range(2000):
        text = "".join(character for character in random_text(generator) if known.issuperset(character.encode()))
        assert whole(smollm2.detokenizer(), list(smollm2.encode(text))) == text


def test_equals_decode_on_random_ids(smollm2: Tokenizer, backend: Backend) -> None:
    generator = random.Random(2)
    for _ in range(5000):
        ids = [generator.randrange(smollm2.vocab_size) for _ in range(generator.randrange(1, 24))]
        skip = generator.random() < 0.5
        expected = backend.decode(ids, skip_special_tokens=skip)
        assert whole(smollm2.detokenizer(skip_special_tokens=skip), ids) == expected, ids


@pytest.mark.parametrize("name", ["smollm2", "byte_tokenizer"])
def test_every_cut_gives_whole_characters_that_add_up(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(MIXED)
    assert len(ids) > len(set(MIXED))  # characters are split over tokens
    for cut in range(len(ids) + 1):
        detokenizer = tokenizer.detokenizer()
        parts = [detokenizer.feed(ids[:cut]), detokenizer.feed(ids[cut:])]
        assert MIXED.startswith(parts[0])
        assert "\ufffd" not in parts[0] + parts[1]
        assert "".join(parts) + detokenizer.flush() == MIXED


def test_a_character_that_is_never_completed_is_flushed_as_one_mark(byte_tokenizer: Tokenizer) -> None:
    detokenizer = byte_tokenizer.detokenizer()
    assert detokenizer.feed([ord("a"), *"🦊".encode()[:3]]) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_ids_past_the_vocabulary_have_no_text(byte_tokenizer: Tokenizer) -> None:
    # Logits may be wider than the vocabulary, so such an id can be drawn.
    assert byte_tokenizer.detokenizer().feed([ord("a"), byte_tokenizer.vocab_size, ord("b")]) == "ab"
