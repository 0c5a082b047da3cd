"""Opens a checkpoint and makes a model of it: the two calls that the worker's start consists of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.backend.protocol import Backend, Compiler
from worker.loader.checkpoint import Checkpoint, check_shapes
from worker.loader.errors import ModelConfigError, UnsupportedModelError
from worker.loader.random_weights import RandomCheckpoint
from worker.loader.resolve import GGUFFile, ModelFiles
from worker.loader.safetensors_checkpoint import SafetensorsCheckpoint
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder
from worker.models.model import Model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run. dtype: of its matrices, unless they are quantised, and of the KV cache to make for it;
    weight_bytes: memory that the parameters take."""

    model: Model
    config: ModelConfig
    dtype: torch.dtype
    weight_bytes: int
    weights_digest: bytes
    tokenizer_digest: bytes


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Reads configuration and tensor list, no weights. Raises ModelError."""
    if isinstance(files, GGUFFile):
        from worker.loader.gguf_checkpoint import GGUFCheckpoint  # its package is needed for such files alone

        return GGUFCheckpoint(files.path)
    return SafetensorsCheckpoint(files) if files.weight_files else RandomCheckpoint(files)


def choose_dtype(name: str, config: ModelConfig) -> torch.dtype:
    """The storage type that --dtype names: "float32", "bfloat16", or "auto" for the checkpoint's own (float16 and GGUF
    files become bfloat16). Raises ModelConfigError for another name."""
    if name == "auto":
        return config.checkpoint_dtype
    if name not in DTYPES:
        raise ModelConfigError(f"--dtype is {name!r}, must be one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def load_model(checkpoint: Checkpoint, backend: Backend, dtype: torch.dtype) -> LoadedModel:
    """Reads the weights into a model on the backend's device; memory peaks at one copy of the model and one tensor.

    Raises WeightsError if the tensors are not those that the configuration asks for, UnsupportedModelError for a head
    size that the backend has no kernel for.
    """
    config, multiple = checkpoint.config, backend.head_dim_multiple
    if config.head_dim % multiple:
        raise UnsupportedModelError(
            f"a head size of {config.head_dim} on backend {backend.name}",
            (f"multiples of {multiple}", "any on --backend torch"),
        )
    check_shapes(config, checkpoint.shapes)
    decoder = Decoder(config, backend, checkpoint, dtype)
    return LoadedModel(
        model=backend.compile(decoder) if isinstance(backend, Compiler) else decoder,
        config=config,
        dtype=dtype,
        weight_bytes=decoder.weight_bytes,
        weights_digest=checkpoint.weights_digest,
        tokenizer_digest=checkpoint.tokenizer_digest,
    )
