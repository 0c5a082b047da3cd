"""The tokenizer of a model's files as the content of a tokenizer.json, for those who need the bytes of its tokens.

Text is tokenised by the scheduler; the worker needs to know which tokens begin a text, and roughly how the tokenizer
would write it. So of a GGUF file's tokenizer the ways to split text before the merges are left out.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from worker.grammar import TokenizerSource
from worker.loader.resolve import GGUFFile, ModelFiles, SafetensorsFiles

_METASPACE = "▁"
_UNKNOWN, _CONTROL = 2, 3  # token types of GGUF


def tokenizer_source(files: ModelFiles) -> TokenizerSource | None:
    """None if the files have no tokenizer, or do not say what ends a text."""
    if isinstance(files, GGUFFile):
        return _of_gguf(files.path)
    if files.tokenizer_file is None:
        return None
    eos = _eos_of_directory(files)
    return TokenizerSource(json=partial(files.tokenizer_file.read_text, "utf-8"), eos_token_ids=eos) if eos else None


def _eos_of_directory(files: SafetensorsFiles) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        eos = _read_json(files.directory / name).get("eos_token_id")
        if eos is not None:
            return tuple(eos) if isinstance(eos, list) else (int(eos),)
    eos = _read_json(files.directory / "tokenizer_config.json").get("eos_token")
    text = eos["content"] if isinstance(eos, dict) else eos
    added = _read_json(files.directory / "tokenizer.json").get("added_tokens", ())
    return tuple(token["id"] for token in added if token["content"] == text)


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return content


def _of_gguf(path: Path) -> TokenizerSource | None:
    fields = gguf.GGUFReader(path).fields

    def value(name: str) -> Any:
        field = fields.get(f"tokenizer.ggml.{name}")
        return None if field is None else field.contents()

    kind, eos = value("model"), value("eos_token_id")
    if kind not in ("gpt2", "llama") or eos is None:
        return None
    tokens, types = value("tokens"), value("token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in value("merges") or ()]
    build = partial(_build, tokens, types, merges, value("scores"), byte_level=kind == "gpt2")
    return TokenizerSource(json=build, eos_token_ids=(int(eos),))


def _build(
    tokens: list[str], types: list[int], merges: list[tuple[str, str]], scores: list[float] | None, *, byte_level: bool
) -> str:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if byte_level:
        backend = Tokenizer(BPE(vocab=vocabulary, merges=merges))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    else:
        ranked = _merges_from_scores(vocabulary, scores or [])
        backend = Tokenizer(BPE(vocab=vocabulary, merges=ranked, byte_fallback=True))
        backend.normalizer = normalizers.Replace(" ", _METASPACE)
        backend.decoder = decoders.Sequence(
            [decoders.Replace(_METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in (_UNKNOWN, _CONTROL)]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return str(backend.to_str())


def _merges_from_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose whole has the highest score."""
    merges = [
        (-scores[token_id], vocabulary[token[:cut]], (token[:cut], token[cut:]))
        for token, token_id in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    return [pair for *_, pair in sorted(merges)]
