"""The byte-level tokenizer of the oracle checkpoints.

Ids 0..255 are the 256 bytes, so that id and byte are the same number and a character of k bytes is k tokens. Then come
the special tokens, and up to VOCAB_SIZE words of two characters that only ids can reach (there are no merges).
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOS, EOS, END_OF_TURN = 256, 257, 258
SPECIAL_TOKENS = {BOS: "<|bos|>", EOS: "<|eos|>", END_OF_TURN: "<|end_of_turn|>"}
VOCAB_SIZE = 320

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|end_of_turn|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def byte_ids(text: str) -> list[int]:
    """The ids that the tokenizer gives to a text without special tokens: its bytes in UTF-8."""
    return list(text.encode("utf-8"))


def _byte_characters() -> list[str]:
    """The character by which byte-level BPE writes each byte: itself where printable, else the next one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(0x100 + others.index(b)) for b in range(256)]


def write_tokenizer(directory: Path) -> None:
    """Writes tokenizer.json into the directory."""
    vocab = {character: byte for byte, character in enumerate(_byte_characters())}
    vocab |= {token: token_id for token_id, token in SPECIAL_TOKENS.items()}
    first_word = len(vocab)
    vocab |= {f"w{chr(0x21 + i)}": first_word + i for i in range(VOCAB_SIZE - first_word)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS.values()])
    tokenizer.save(str(directory / "tokenizer.json"))
