"""Finds a model's files: a directory, a GGUF file, or a Hub id whose small files are fetched or found on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scheduler.frontend.errors import ModelNotFoundError

# All that a tokenizer needs; never the weights.
_PATTERNS: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def locate(model: str, revision: str | None) -> Path:
    """The directory or GGUF file that `model` names. HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE are honoured.

    Raises ModelNotFoundError with all that was tried.
    """
    path = Path(model).expanduser()
    if model and path.exists():
        return path
    if model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf") or model.count("/") > 1 or not model:
        raise ModelNotFoundError(f"model {model!r}: there is no such file or directory (tried {path.absolute()})")
    return _snapshot(model, revision, path)


def _snapshot(model: str, revision: str | None, tried: Path) -> Path:
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(_PATTERNS)))
    except (OSError, ValueError) as error:  # what huggingface_hub raises for absent, gated, misnamed and offline
        offline = " (HF_HUB_OFFLINE is set, so only files that are on disk)" if constants.HF_HUB_OFFLINE else ""
        at_revision = f" at revision {revision!r}" if revision else ""
        reason = (str(error).splitlines() or [""])[0]  # the lines after it are advice about logging in
        raise ModelNotFoundError(
            f"model {model!r}: there is no file or directory {tried.absolute()}, and no Hub repository {model!r}"
            f"{at_revision} in {constants.HF_HUB_CACHE} or online{offline}: {type(error).__name__}: {reason}"
        ) from error
