"""Incremental text against the tokenizers' own decode of all ids, for every kind of tokenizer that is served."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from scheduler.frontend.detokenizer import Detokenizer, byte_alphabet
from scheduler.frontend.errors import UnsupportedModelError
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.frontend.tokenizer_parts import TokenizerParts

WORDS = ("▁the", "▁", "▁▁", "▁▁▁", "a", "▁a▁b", "é", "日本", "🦊", ".", "<tool>", "▁<x")
SPECIAL = ("<s>", "</s>", "<|end|>")
ADDED = ("▁▁▁▁", "<added>", "\n\n")

LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS = {
    "llama": decoders.Sequence(LLAMA),
    "gemma": decoders.Sequence(LLAMA[:3]),
    "two spaces": decoders.Sequence([*LLAMA[:3], decoders.Strip(" ", 2, 0)]),
    "metaspace": decoders.Metaspace(),
    "metaspace first": decoders.Metaspace(prepend_scheme="first"),
    "metaspace never": decoders.Metaspace(prepend_scheme="never"),
    "metaspace with bytes": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    "bytes": decoders.ByteLevel(),
}


def backend(kind: str) -> Backend:
    """A vocabulary with all that is difficult in it."""
    if kind == "bytes":
        words = [*byte_alphabet(), "Ġthe", "ðŁ", "¦Ĭ", "æĹ¥æľ"]
    else:
        words = [*(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    made = Backend(BPE(vocab={word: id_ for id_, word in enumerate(words)}, merges=[], byte_fallback=True))
    made.decoder = DECODERS[kind]
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED if kind != "bytes"])
    return made


def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer(TokenizerParts(backend=backend(kind)))


def text_of(detokenizer: Detokenizer, ids: list[int], dice: random.Random) -> str:
    """In pieces of random sizes."""
    text, place = "", 0
    while place < len(ids):
        size = dice.choice([1, 1, 1, 2, 5])
        text, place = text + detokenizer.feed(ids[place : place + size]), place + size
    return text + detokenizer.flush()


def random_ids(made: Tokenizer, kind: str, dice: random.Random) -> list[int]:
    """Tokens, and whole characters as bytes; in some sequences stray bytes, too."""
    byte_range, others = range(256), range(256, made.vocab_size + 2)
    stray = dice.random() < 0.4
    ids: list[int] = []
    for _ in range(dice.randint(1, 10)):
        match dice.randrange(4):
            case 0:
                ids += character_bytes(kind, dice.choice("aé日🦊 \n"))
            case 1 if stray:
                ids.append(dice.choice(byte_range))
            case _:
                ids.append(dice.choice(others))
    return ids


def character_bytes(kind: str, character: str) -> Iterator[int]:
    places = {byte: id_ for id_, byte in enumerate(byte_alphabet().values())} if kind == "bytes" else None
    return (byte if places is None else places[byte] for byte in character.encode())


def comparable(made: Backend, ids: list[int], *, skip: bool) -> bool:
    """Whether tokenizers' decode is right: it garbles the valid characters in a run of byte tokens that has others."""
    special = {made.token_to_id(token) for token in SPECIAL}
    tokens = [made.id_to_token(id_) for id_ in ids if not (skip and id_ in special)]
    run = b""
    for token in [*tokens, "end"]:
        match = re.fullmatch("<0x(..)>", token or "")
        if token is None:
            continue
        if match:
            run += bytes([int(match[1], 16)])
            continue
        lenient = run.decode(errors="ignore")
        if lenient and lenient.encode() != run:
            return False
        run = b""
    return True


@pytest.mark.parametrize("kind", DECODERS)
def test_text_from_the_start_equals_decode(kind: str) -> None:
    made, reference = tokenizer(kind), backend(kind)
    dice = random.Random(kind)
    compared = 0
    for _ in range(4000):
        ids, skip = random_ids(made, kind, dice), dice.random() < 0.5
        text = text_of(made.detokenizer(skip_special_tokens=skip, begins_text=True), ids, dice)
        if kind == "bytes" or comparable(reference, ids, skip=skip):
            compared += 1
            assert text == reference.decode(ids, skip_special_tokens=skip), ids
    assert compared > 3000


@pytest.mark.parametrize("kind", DECODERS)
def test_text_behind_a_prompt_is_what_decode_adds(kind: str) -> None:
    made, reference = tokenizer(kind), backend(kind)
    prompt = [reference.token_to_id("a")]
    dice = random.Random(kind)
    for _ in range(1000):
        ids = random_ids(made, kind, dice)
        if kind == "bytes" or comparable(reference, ids, skip=True):
            text = text_of(made.detokenizer(), ids, dice)
            assert f"a{text}" == reference.decode(prompt + ids), ids


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xe6\x97\xa5\xff", "日\ufffd"),  # tokenizers makes four marks of it: the last byte would undo a character
        (b"\xe6\x97", "\ufffd\ufffd"),
        (b"\xf0\x9fA", "\ufffd\ufffdA"),
        (b"\x97\xa5a", "\ufffd\ufffda"),  # a prompt ended in mid-character
        (b"\xe6\x97\xa5", "日"),
    ],
)
def test_bytes_that_are_no_characters_are_one_mark_each(data: bytes, text: str) -> None:
    """As SentencePiece has it; see sentencepiece_processor.cc, Decode."""
    made = tokenizer("llama")
    for cut in range(len(data) + 1):
        detokenizer = made.detokenizer()
        assert detokenizer.feed(data[:cut]) + detokenizer.feed(data[cut:]) + detokenizer.flush() == text


def test_a_skipped_token_does_not_part_a_character() -> None:
    made, reference = tokenizer("llama"), backend("llama")
    ids = [0xE6, 0x97, reference.token_to_id("</s>"), 0xA5]
    assert text_of(made.detokenizer(), ids, random.Random(0)) == "日"
    assert text_of(made.detokenizer(skip_special_tokens=False), ids, random.Random(0)) == "\ufffd\ufffd</s>\ufffd"


def test_spaces_go_between_special_tokens_only() -> None:
    made, reference = tokenizer("llama"), backend("llama")
    ids = [reference.token_to_id(token) for token in ("<s>", "</s>", "a", "<|end|>", "<added>", "<s>", "<s>")]
    for split in range(len(ids)):
        spaced = made.detokenizer(skip_special_tokens=False, spaces_between_special_tokens=True)
        assert spaced.feed(ids[:split]) + spaced.feed(ids[split:]) == "<s> </s>a<|end|><added><s> <s>"
    assert made.detokenizer(skip_special_tokens=False).feed(ids) == "<s></s>a<|end|><added><s><s>"
    assert made.detokenizer(spaces_between_special_tokens=True).feed(ids) == "a<added>"


def test_special_tokens_that_a_parser_needs_are_shown() -> None:
    made = tokenizer("llama")
    end = made.special_token_id("<|end|>")
    assert end is not None
    assert made.special_token_id("a") is made.special_token_id("no") is None
    assert made.detokenizer(shown=frozenset({end})).feed([end, end - 1]) == "<|end|>"


def test_an_added_token_is_its_own_text() -> None:
    """tokenizers' decode takes the é of a byte-level tokenizer's added token for the byte 0xE9."""
    made = backend("bytes")
    made.add_tokens([AddedToken("<é>", normalized=False)])
    ours = Tokenizer(TokenizerParts(backend=made))
    assert ours.detokenizer().feed(ours.encode("<é>")) == "<é>"
    assert made.decode(list(ours.encode("<é>"))) == "<\ufffd>"


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.WordPiece(), "decoder WordPiece"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 0, 1)]), "decoder Strip"),
        (decoders.Sequence([decoders.Replace("_", " "), decoders.Fuse()]), "decoder Replace"),
        (decoders.Fuse(), "decoder Fuse"),
        (None, "decoder none"),
    ],
)
def test_a_decoder_that_is_not_understood_is_named(decoder: decoders.Decoder | None, named: str) -> None:
    made = backend("llama")
    made.decoder = decoder
    with pytest.raises(UnsupportedModelError, match=named):
        Tokenizer(TokenizerParts(backend=made))
