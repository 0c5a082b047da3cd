"""Weights made up from a configuration: a model of any size without its weights' files, to measure speed with."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping

import torch

from worker.loader.hf_config import read_hf_config
from worker.loader.resolve import SafetensorsFiles
from worker.models.config import ModelConfig
from worker.models.weights import weight_shapes

_STANDARD_DEVIATION = 0.02  # as models are initialised before training, so that activations stay of a usual size


class RandomWeights:
    """Satisfies worker.models.weights.WeightReader. A tensor's values depend on its name and on the kind of device."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = weight_shapes(config)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str, out: torch.Tensor) -> None:
        if name.endswith("norm.weight"):
            out.fill_(1.0)
            return
        generator = torch.Generator(out.device).manual_seed(zlib.crc32(name.encode()))
        out.normal_(0.0, _STANDARD_DEVIATION, generator=generator)


class RandomCheckpoint(RandomWeights):
    """A model directory's configuration and tokenizer with random weights. Satisfies
    worker.loader.checkpoint.Checkpoint."""

    def __init__(self, files: SafetensorsFiles) -> None:
        """Reads config.json. Raises ModelConfigError or UnsupportedModelError."""
        self.config = read_hf_config(files.config_file)
        self._files = files
        super().__init__(self.config)

    @property
    def weights_digest(self) -> bytes:
        return hashlib.sha256(b"random" + self._files.config_file.read_bytes()).digest()

    @property
    def tokenizer_digest(self) -> bytes:
        return self._files.tokenizer_digest
