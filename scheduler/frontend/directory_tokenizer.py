"""Reads the tokenizer of a model directory: tokenizer.json and the files beside it.

transformers' AutoTokenizer would do, but importing it imports torch where that is installed: seconds and 300 MB in a
process that needs neither. What it reads from the files is read here in the same order of precedence; like it, this
leaves BOS to the post-processor in tokenizer.json and does not look at `add_bos_token`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import tokenizers

from scheduler.frontend.errors import UnsupportedModelError
from scheduler.frontend.sampling_defaults import sampling_defaults
from scheduler.frontend.tokenizer_parts import TokenizerParts

_OTHER_FORMATS: Final = ("tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model", "tekken.json")
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_directory(directory: Path) -> TokenizerParts:
    """Raises UnsupportedModelError for a tokenizer in another format, or for a file that cannot be read."""
    model_config = _read_json(directory / "config.json")
    generation_config = _read_json(directory / "generation_config.json")
    config = _read_json(directory / "tokenizer_config.json")
    backend, digest = _read_backend(directory)
    special_tokens = _special_tokens(_read_json(directory / "special_tokens_map.json") | config)

    def token_id(name: str) -> int | None:
        token = special_tokens.get(name)
        return None if token is None or backend is None else backend.token_to_id(token)

    eos = generation_config.get("eos_token_id", model_config.get("eos_token_id"))
    if eos is None:
        eos = token_id("eos_token")
    bos = token_id("bos_token")
    return TokenizerParts(
        backend=backend,
        bos_token_id=model_config.get("bos_token_id") if bos is None else bos,
        eos_token_ids=_as_ids(eos),
        chat_template=_chat_template(directory, config, "default"),
        tool_chat_template=_chat_template(directory, config, "tool_use"),
        special_tokens=special_tokens,
        sampling_defaults=sampling_defaults(generation_config),
        digest=digest,
    )


def _read_backend(directory: Path) -> tuple[tokenizers.Tokenizer | None, bytes]:
    path = directory / "tokenizer.json"
    if not path.is_file():
        others = [name for name in _OTHER_FORMATS if (directory / name).is_file()]
        if others:
            raise UnsupportedModelError(
                f"{directory}: has {', '.join(others)}, but no tokenizer.json, the only format supported; "
                "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) converts it"
            )
        return None, b""
    data = path.read_bytes()
    try:
        backend = tokenizers.Tokenizer.from_buffer(data)
    except ValueError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error
    # Left over from training in some files; a prompt must not be cut or padded behind its sender's back.
    backend.no_truncation()
    backend.no_padding()
    return backend, hashlib.sha256(data).digest()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise UnsupportedModelError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedModelError(f"{path}: must hold a JSON object, holds a {type(content).__name__}")
    return content


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {name: config[name] for name in _SPECIAL_TOKENS if config.get(name) is not None}
    return {name: token["content"] if isinstance(token, dict) else str(token) for name, token in tokens.items()}


def _chat_template(directory: Path, config: dict[str, Any], name: str) -> str | None:
    """The template of this name; that of a model with one template is "default"."""
    path = directory / ("chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja")
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry["name"] == name), None)
    return template if name == "default" else None


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
