"""A checkpoint in Hugging Face layout: config.json and safetensors files, single or sharded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from worker.loader.digest import weights_digest
from worker.loader.errors import UnsupportedModelError, WeightsError
from worker.loader.hf_config import read_hf_config
from worker.loader.resolve import SafetensorsFiles
from worker.models.config import ModelConfig

_DTYPES = ("F32", "BF16", "F16")
# Buffers that old checkpoints saved among the weights; they follow from the configuration.
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"


class SafetensorsCheckpoint:
    """Files are mapped into memory; a tensor is read when asked for. Satisfies worker.loader.checkpoint.Checkpoint."""

    def __init__(self, files: SafetensorsFiles) -> None:
        """Opens all files. Raises ModelConfigError, UnsupportedModelError or WeightsError."""
        from safetensors import SafetensorError, safe_open

        self.config: ModelConfig = read_hf_config(files.config_file)
        self._files = files
        self._handles: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in files.weight_files:
            try:
                handle = safe_open(path, framework="pt", device="cpu")
            except SafetensorError as error:
                raise WeightsError(f"{path} cannot be read as safetensors: {error}") from error
            for name in handle.keys():  # noqa: SIM118 - a safetensors handle is not a mapping
                if not name.endswith(_IGNORED_SUFFIX):
                    self._add(name, path, handle)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    @property
    def weights_digest(self) -> bytes:
        config_file = self._files.config_file
        headers = [(path, _header_bytes(path)) for path in self._files.weight_files]
        return weights_digest([(config_file, config_file.stat().st_size), *headers])

    @property
    def tokenizer_digest(self) -> bytes:
        return self._files.tokenizer_digest

    def read(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self._handles[name].get_tensor(name))

    def _add(self, name: str, path: Path, handle: Any) -> None:
        view = handle.get_slice(name)
        if view.get_dtype() not in _DTYPES:
            raise UnsupportedModelError(f"type {view.get_dtype()} of tensor {name} in {path.name}", _DTYPES)
        if name in self._handles:
            raise WeightsError(f"tensor {name} is in more than one file, the second is {path.name}")
        self._handles[name] = handle
        self._shapes[name] = tuple(view.get_shape())


def _header_bytes(path: Path) -> int:
    """A safetensors file begins with the length of its JSON header, 8 bytes little-endian."""
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")
