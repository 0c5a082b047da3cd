"""Builds a tokenizer from the metadata of a GGUF file.

`tokenizer.ggml.model` names the kind: "gpt2" is byte-level BPE, whose way to split text before the merges is only
implied by `tokenizer.ggml.pre`; "llama" is a SentencePiece BPE with scores in place of merges.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from scheduler.frontend.errors import UnsupportedModelError
from scheduler.frontend.gguf_metadata import MetadataValue, read_metadata
from scheduler.frontend.token_bytes import METASPACE
from scheduler.frontend.tokenizer_parts import TokenizerParts

# Token types of GGUF.
_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4

# Split patterns of the model families. Source: their tokenizer.json files; llama.cpp lists the same in llama-vocab.cpp.
_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = _WORDS + r"\p{N}{1,3}" + _REST
_QWEN2: Final = _WORDS + r"\p{N}" + _REST
_PRE_TOKENIZERS: Final = ("default", "gpt-2", "llama-bpe", "qwen2", "smollm")


def read_gguf(path: Path) -> TokenizerParts:
    """Raises UnsupportedModelError that names what is supported."""
    metadata = read_metadata(path)
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(f"{path}: tokenizer.ggml.model {kind!r} is not supported; 'gpt2' and 'llama' are")
    tokens: list[Any] = _list(metadata, "tokenizer.ggml.tokens")
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    try:
        backend = _byte_level_bpe(metadata, tokens, pre) if kind == "gpt2" else _sentencepiece_bpe(metadata, tokens)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error
    _add_tokens(backend, tokens, _list(metadata, "tokenizer.ggml.token_type"))

    def token_id(name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) else None

    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: token_id(key) for name, key in names.items()}
    ends = (token_id("eos"), token_id("eot"))

    def template(key: str) -> str | None:
        value = metadata.get(key)
        return None if value is None else str(value)

    return TokenizerParts(
        backend=backend,
        # Files that do not say: SentencePiece and Llama 3 vocabularies begin with BOS, other byte-level ones do not.
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre == "llama-bpe")),
        bos_token_id=ids["bos_token"],
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        chat_template=template("tokenizer.chat_template"),
        tool_chat_template=template("tokenizer.chat_template.tool_use"),
        special_tokens={name: tokens[token] for name, token in ids.items() if token is not None},
        digest=hashlib.sha256("\0".join(tokens).encode("utf-8", errors="surrogateescape")).digest(),
    )


def _byte_level_bpe(metadata: dict[str, MetadataValue], tokens: list[str], pre: str) -> Tokenizer:
    merges: list[Any] = _list(metadata, "tokenizer.ggml.merges")
    backend = Tokenizer(
        BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in merges],
            # Llama 3 takes a word that is a token as that token, even where the merges would not make it.
            ignore_merges=pre == "llama-bpe",
        )
    )
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    match pre:
        case "default" | "gpt-2":
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        case "smollm":
            return pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
                ]
            )
        case "llama-bpe" | "qwen2":
            pattern = Regex(_LLAMA3 if pre == "llama-bpe" else _QWEN2)
            return pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(pattern, behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
        case _:
            raise UnsupportedModelError(
                f"tokenizer.ggml.pre {pre!r} is not supported; {', '.join(_PRE_TOKENIZERS)} are"
            )


def _sentencepiece_bpe(metadata: dict[str, MetadataValue], tokens: list[str]) -> Tokenizer:
    scores: list[Any] = _list(metadata, "tokenizer.ggml.scores")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=_merges_from_scores(vocabulary, scores),
            unk_token=tokens[unknown] if isinstance(unknown, int) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    encoding: list[normalizers.Normalizer] = [normalizers.Replace(" ", METASPACE)]
    decoding: list[decoders.Decoder] = [decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        encoding.insert(0, normalizers.Prepend(METASPACE))
        decoding.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(encoding)
    backend.decoder = decoders.Sequence(decoding)
    return backend


def _merges_from_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose whole has the highest score: rank all pairs by the score of their whole."""
    merges: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, token_id in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-scores[token_id], vocabulary[left], vocabulary[right], (left, right)))
    return [pair for *_, pair in sorted(merges)]


def _add_tokens(backend: Tokenizer, tokens: list[str], types: list[Any]) -> None:
    """Makes control and user-defined tokens atoms that no merge crosses; only control tokens are special."""
    for token, kind in zip(tokens, types, strict=True):
        if kind in (_CONTROL, _UNKNOWN):
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, special=False, normalized=False)])


def _list(metadata: dict[str, MetadataValue], key: str) -> list[MetadataValue]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise UnsupportedModelError(f"GGUF metadata has no list {key}, which the tokenizer needs")
    return value
