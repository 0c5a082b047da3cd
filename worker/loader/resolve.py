"""Finds a model's files: a directory in Hugging Face layout, a GGUF file, or a Hub id.

Hub ids go through huggingface_hub, which honours HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.loader.errors import ModelConfigError, ModelNotFoundError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ("*.json", "*.safetensors")
# Copies of the same weights in their publisher's own format.
_HUB_IGNORED = ("original/*", "consolidated*", "onnx/*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsFiles:
    """A model directory: config_file, the weight files in order of name, tokenizer.json if there is one."""

    directory: Path
    config_file: Path
    weight_files: tuple[Path, ...]
    tokenizer_file: Path | None

    @property
    def tokenizer_digest(self) -> bytes:
        """SHA-256 of tokenizer.json, empty where there is none."""
        return hashlib.sha256(self.tokenizer_file.read_bytes()).digest() if self.tokenizer_file else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFFile:
    """A GGUF file: configuration, tokenizer and weights in one."""

    path: Path


ModelFiles = SafetensorsFiles | GGUFFile


def resolve_model(model: str, revision: str | None = None, *, with_weights: bool = True) -> ModelFiles:
    """Files of `model`; a Hub id is downloaded first if the model cache lacks it. revision is for Hub ids only.
    with_weights False: a directory need hold none, and none are looked for.

    Raises ModelNotFoundError saying what was tried, ModelConfigError for an index that cannot be read.
    """
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _in_directory(path, with_weights)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelNotFoundError(f"model {model!r} is a file but no .gguf file; name one, or a directory")
        return GGUFFile(path=path)
    if not _HUB_ID.fullmatch(model) or path.suffix == ".gguf":
        raise ModelNotFoundError(f"model {model!r} not found: no such directory or file, and not a Hub id (ORG/NAME)")
    return _in_directory(_from_hub(model, revision, _HUB_FILES if with_weights else _HUB_FILES[:1]), with_weights)


def _in_directory(directory: Path, with_weights: bool) -> SafetensorsFiles:
    config_file, tokenizer_file = directory / "config.json", directory / "tokenizer.json"
    if not config_file.is_file():
        gguf_files = sorted(file.name for file in directory.glob("*.gguf"))
        hint = f"; it holds {', '.join(gguf_files)}: name that file itself" if gguf_files else ""
        raise ModelNotFoundError(f"model directory {str(directory)!r} has no config.json{hint}")
    return SafetensorsFiles(
        directory=directory,
        config_file=config_file,
        weight_files=_weight_files(directory) if with_weights else (),
        tokenizer_file=tokenizer_file if tokenizer_file.is_file() else None,
    )


def _weight_files(directory: Path) -> tuple[Path, ...]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            files = sorted({directory / name for name in json.loads(index.read_text())["weight_map"].values()})
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelConfigError(f"{index} is not a safetensors index: {error!r}") from error
    else:
        files = [directory / "model.safetensors"]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelNotFoundError(
            f"model directory {str(directory)!r} lacks {', '.join(missing)}; weights must be safetensors "
            "(model.safetensors, or shards with model.safetensors.index.json)"
        )
    return tuple(files)


def _from_hub(model: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        directory = snapshot_download(
            model, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(_HUB_IGNORED)
        )
    except (OSError, ValueError) as error:  # what huggingface_hub raises derives from these; its first line says why
        at = f" at revision {revision!r}" if revision else ""
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ModelNotFoundError(
            f"model {model!r}{at} not found: no such directory or file, and from the Hub "
            f"{type(error).__name__}: {reason}"
        ) from error
    return Path(directory)
