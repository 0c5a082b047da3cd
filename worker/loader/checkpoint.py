"""A checkpoint opened for reading, whatever its format, and the check that it is what its configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from worker.loader.errors import WeightsError
from worker.models.config import ModelConfig
from worker.models.weights import LM_HEAD, WeightReader, weight_shapes

# Most names that an error lists; a wrong file differs in hundreds.
_LISTED = 5


class Checkpoint(WeightReader, Protocol):
    """Configuration, tensors and digests of a model's files."""

    @property
    def config(self) -> ModelConfig:
        """What the files describe."""
        ...

    @property
    def weights_digest(self) -> bytes:
        """Fingerprint of the files that determine the KV cache's contents; see worker.loader.digest."""
        ...

    @property
    def tokenizer_digest(self) -> bytes:
        """SHA-256 of tokenizer.json, or of a GGUF file's token list joined by NUL; empty where there is none."""
        ...


def check_shapes(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises WeightsError naming tensors that are missing, unexpected, or not of the shape that config asks for."""
    expected = weight_shapes(config)
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise WeightsError(f"missing tensors: {_some(missing)}")
    # Checkpoints with tied embeddings may hold the projection as well; it is the same matrix.
    unexpected = [name for name in shapes if name not in expected and not (config.tie_embeddings and name == LM_HEAD)]
    if unexpected:
        raise WeightsError(f"unexpected tensors for {config.architecture}: {_some(unexpected)}")
    wrong = [
        f"{name} is {list(shapes[name])}, the configuration asks for {list(shape)}"
        for name, shape in expected.items()
        if shapes[name] != shape
    ]
    if wrong:
        raise WeightsError(f"tensors of the wrong shape: {_some(wrong)}")


def _some(items: list[str]) -> str:
    more = len(items) - _LISTED
    return ", ".join(items[:_LISTED]) + (f" and {more} more" if more > 0 else "")
