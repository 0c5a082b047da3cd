"""Tokenizers from GGUF files: against transformers, and per pre-tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from scheduler.frontend.detokenizer import byte_alphabet
from scheduler.frontend.errors import UnsupportedModelError
from scheduler.frontend.gguf_metadata import read_metadata
from scheduler.frontend.tokenizer import Tokenizer, load_tokenizer
from tests.scheduler.frontend.conftest import SMOLLM2

TEXTS = [
    "The capital of France is Paris.",
    "  two spaces,\ttab\n\n\nnewlines  ",
    "naïve café, Ελληνικά, русский, 日本語, हिन्दी, עברית",
    "emoji 😀👩‍👩‍👧‍👦🇫🇷 and combining e\u0301",
    "I'll, we've, IT'S don't",
    "def f(x):\n    return {x: [x] * x}  # comment",
    "<|im_start|>user\nHi<|im_end|>\n",
    "",
]


@pytest.fixture(scope="module")
def reference() -> Any:
    """transformers' reading of the same file."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name)


def test_equals_transformers_on_text_without_digits(smollm2: Tokenizer, reference: Any) -> None:
    for text in TEXTS:
        assert list(smollm2.encode(text)) == reference.encode(text), text


def test_digits_stand_alone_as_the_model_was_trained(smollm2: Tokenizer, reference: Any) -> None:
    # Only `tokenizer.ggml.pre = smollm` says so; transformers does not read it and merges the space with the digit.
    two_spaces, one = smollm2.encode("  ")[0], smollm2.encode("1")[0]
    assert smollm2.encode("  1") == (two_spaces, one)
    assert reference.encode("  1") != [two_spaces, one]


def test_chat_equals_transformers(smollm2: Tokenizer, reference: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Where is\nParis?"},
    ]
    for given in (messages, messages[1:]):
        for add_generation_prompt in (True, False):
            text = smollm2.chat_template.render(given, add_generation_prompt=add_generation_prompt)
            assert text == reference.apply_chat_template(
                given, add_generation_prompt=add_generation_prompt, tokenize=False
            )
            expected = reference.encode(text, add_special_tokens=False)
            assert list(smollm2.encode(text, special_tokens=False)) == expected


def test_the_facts_of_the_file(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.bos_token_id == 1
    assert smollm2.eos_token_ids == (2,)
    assert smollm2.token_bytes[2] == b"<|im_end|>"
    assert {0, 1, 2} <= smollm2.special_token_ids
    assert smollm2.encode("x")[0] != smollm2.bos_token_id  # add_bos_token is false
    assert len(smollm2.digest) == 32


def test_metadata_equals_the_gguf_package() -> None:
    reader = gguf.GGUFReader(SMOLLM2)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    metadata = read_metadata(SMOLLM2)
    assert metadata.keys() == fields.keys()
    for name, field in fields.items():
        if len(field.data) < 1000:
            assert metadata[name] == field.contents(), name
        else:
            value = metadata[name]
            assert isinstance(value, list)
            assert len(value) == len(field.data)
            assert value[:100] == [field.contents(place) for place in range(100)]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda data: b"GGML" + data[4:], "GGML"),
        (lambda data: data[:4] + b"\x01" + data[5:], "version 1"),
        (lambda data: data[:60], "truncated"),
        (lambda data: data[:24] + b"\xff" * 8 + data[32:], "truncated"),
    ],
    ids=["magic", "version", "short", "length"],
)
def test_damaged_files_are_named(damage: Callable[[bytes], bytes], named: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damage(SMOLLM2.read_bytes()[:4096]))
    with pytest.raises(UnsupportedModelError, match=named) as error:
        load_tokenizer(str(path))
    assert str(path) in str(error.value)


def write_byte_level(path: Path, pre: str | None, **extra: bool) -> None:
    """A vocabulary of the 256 bytes, with merges that make 12, 123, 1234 and ' 1', and an end-of-turn token."""
    letters = list(byte_alphabet())
    space = next(letter for letter, byte in byte_alphabet().items() if byte == 0x20)
    merges = ["1 2", "12 3", "123 4", f"{space} 1"]
    tokens = [*letters, *(merge.replace(" ", "") for merge in merges), "<|eos|>", "<|eot|>", "<tool>", "€uro"]
    normal, control, user_defined = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([normal] * 260 + [control] * 2 + [user_defined] * 2)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(260)
    writer.add_eos_token_id(260)
    writer.add_eot_token_id(261)
    for name, value in extra.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    close(writer)


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_bytes[token_id].decode() for token_id in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", [" ", "1", "2", "3", "4"]),
        ("qwen2", [" ", "1", "2", "3", "4"]),
        ("llama-bpe", ["<|eos|>", " ", "123", "4"]),
        ("gpt-2", [" ", "1234"]),
        (None, [" ", "1234"]),
    ],
)
def test_each_pre_tokenizer_splits_digits_its_own_way(pre: str | None, expected: list[str], tmp_path: Path) -> None:
    write_byte_level(tmp_path / "m.gguf", pre)
    tokenizer = load_tokenizer(str(tmp_path / "m.gguf"))
    assert pieces(tokenizer, " 1234") == expected


def test_added_tokens_are_atoms_and_only_control_tokens_are_special(tmp_path: Path) -> None:
    write_byte_level(tmp_path / "m.gguf", "qwen2")
    tokenizer = load_tokenizer(str(tmp_path / "m.gguf"))
    assert tokenizer.eos_token_ids == (260, 261)
    assert tokenizer.special_token_ids == {260, 261}
    assert tokenizer.encode("<|eot|><tool>€uro") == (261, 262, 263)
    assert tokenizer.detokenizer().feed([261, 262, 263]) == "<tool>€uro"
    assert tokenizer.detokenizer(skip_special_tokens=False).feed([261]) == "<|eot|>"


def test_qwen2_composes_characters(tmp_path: Path) -> None:
    write_byte_level(tmp_path / "m.gguf", "qwen2")
    tokenizer = load_tokenizer(str(tmp_path / "m.gguf"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


@pytest.mark.parametrize(("add_bos", "begins"), [(True, True), (False, False)])
def test_the_file_decides_about_bos(add_bos: bool, begins: bool, tmp_path: Path) -> None:
    write_byte_level(tmp_path / "m.gguf", "llama-bpe", add_bos_token=add_bos)
    tokenizer = load_tokenizer(str(tmp_path / "m.gguf"))
    assert (tokenizer.encode("a")[0] == tokenizer.bos_token_id) is begins


def test_an_unknown_pre_tokenizer_is_named_with_the_supported_ones(tmp_path: Path) -> None:
    write_byte_level(tmp_path / "m.gguf", "tekken")
    with pytest.raises(
        UnsupportedModelError, match="'tekken' is not supported; default, gpt-2, llama-bpe, qwen2, smollm"
    ):
        load_tokenizer(str(tmp_path / "m.gguf"))


def test_an_unknown_kind_is_named_with_the_supported_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "t5")
    writer.add_tokenizer_model("t5")
    close(writer)
    with pytest.raises(UnsupportedModelError, match="'t5' is not supported; 'gpt2' and 'llama' are"):
        load_tokenizer(str(tmp_path / "m.gguf"))


def train_sentencepiece_like() -> Backend:
    """A BPE over metaspaces with byte fallback, trained on a few sentences."""
    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    backend.train_from_iterator(["the cat sat on the mat", "the dog ate the cat's hat", "that is the end"] * 5, trainer)
    return backend


def write_sentencepiece(path: Path, trained: Backend, **extra: bool) -> None:
    vocabulary = trained.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    kind = gguf.TokenType
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(place) for place in range(len(tokens))])  # as llama.cpp's converter ranks them
    writer.add_token_types(
        [kind.UNKNOWN, kind.CONTROL, kind.CONTROL] + [kind.BYTE] * 256 + [kind.NORMAL] * (len(tokens) - 259)
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, value in extra.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    close(writer)


def test_sentencepiece_bpe_makes_its_merges_from_scores(tmp_path: Path) -> None:
    trained = train_sentencepiece_like()
    write_sentencepiece(tmp_path / "m.gguf", trained)
    tokenizer = load_tokenizer(str(tmp_path / "m.gguf"))
    for text in ("the cat sat", "that hat is the dog's", "  the end", "on é 😀 mat"):
        ids = tokenizer.encode(text)
        assert ids == (1, *trained.encode(text, add_special_tokens=False).ids), text
        assert tokenizer.detokenizer().feed(ids) == f" {text}"
        assert tokenizer.detokenizer(begins_text=True).feed(ids) == text


def test_a_sentencepiece_vocabulary_without_a_space_in_front(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path / "m.gguf", train_sentencepiece_like(), add_space_prefix=False, add_bos_token=False)
    tokenizer = load_tokenizer(str(tmp_path / "m.gguf"))
    for text in ("the cat", " the cat", "é 😀"):
        assert tokenizer.detokenizer(begins_text=True).feed(tokenizer.encode(text)) == text
