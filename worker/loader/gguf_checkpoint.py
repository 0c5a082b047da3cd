"""A checkpoint in one GGUF file. Quantised tensors are dequantised when read, one at a time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from worker.loader.digest import weights_digest
from worker.loader.errors import UnsupportedModelError, WeightsError
from worker.loader.gguf_config import ROPE_DIVISORS, gguf_architecture, read_gguf_config
from worker.models.config import ModelConfig
from worker.models.weights import weight_shapes

_TOKENS = "tokenizer.ggml.tokens"


class GGUFCheckpoint:
    """The file is mapped into memory. Satisfies worker.loader.checkpoint.Checkpoint.

    Tensors are known by their Hugging Face names; those that the configuration does not ask for keep their GGUF names,
    so that the check of names reports them.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises ModelConfigError, UnsupportedModelError or WeightsError."""
        self._path = path
        self._reader = _open(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        for tensor in self._reader.tensors:
            if not _can_dequantise(tensor.tensor_type):
                raise UnsupportedModelError(
                    f"GGUF type {tensor.tensor_type.name} of tensor {tensor.name}", _gguf_types()
                )
        metadata = _scalars(self._reader)
        self._architecture = gguf_architecture(metadata)
        divisors = self._tensors.pop(ROPE_DIVISORS, None)
        self.config: ModelConfig = read_gguf_config(
            metadata,
            {name: _shape(tensor) for name, tensor in self._tensors.items()},
            None if divisors is None else _dequantise(divisors).tolist(),
        )
        self._names = self._gguf_names()  # by Hugging Face name
        self._shapes = {name: _shape(self._tensors[name_in_file]) for name, name_in_file in self._names.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    @property
    def weights_digest(self) -> bytes:
        return weights_digest([(self._path, self._reader.data_offset)])

    @property
    def tokenizer_digest(self) -> bytes:
        field = self._reader.fields.get(_TOKENS)
        if field is None:
            return b""
        return hashlib.sha256(b"\0".join(field.parts[index].tobytes() for index in field.data)).digest()

    def read(self, name: str, out: torch.Tensor) -> None:
        values = _dequantise(self._tensors[self._names[name]])
        if self._architecture.permuted_qk and ".self_attn.q_proj." in name:
            values = _unpermute(values, self.config.num_heads)
        elif self._architecture.permuted_qk and ".self_attn.k_proj." in name:
            values = _unpermute(values, self.config.num_kv_heads)
        out.copy_(torch.from_numpy(np.require(values, requirements="W")))  # torch warns of arrays it could not write to

    def _gguf_names(self) -> dict[str, str]:
        architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == self._architecture.gguf_name)
        name_map = gguf.get_tensor_name_map(architecture, self.config.num_layers)
        wanted = {name_map.get_name(name, (".weight", ".bias")): name for name in weight_shapes(self.config)}
        return {wanted.get(name, name): name for name in self._tensors}


class _Reader(gguf.GGUFReader):
    """Says how much of a truncated file is missing: the package fails at the first array that comes out too short."""

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        needed = max((start_offs + _end(field) for field in fields), default=0)
        if self.data.size < needed:
            raise WeightsError(f"truncated: {self.data.size} bytes, {needed} needed")
        super()._build_tensors(start_offs, fields)


def _end(field: gguf.ReaderField) -> int:
    """Where a tensor ends, in bytes from the start of the tensors."""
    *_, sizes, tensor_type, offset = field.parts
    block_size, type_size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(tensor_type[0]))]
    return int(offset[0]) + int(math.prod(sizes.tolist())) * type_size // block_size


def _open(path: Path) -> Any:
    try:
        return _Reader(path)
    except WeightsError as error:
        raise WeightsError(f"{path} is {error}") from None
    except (ValueError, IndexError, KeyError) as error:  # the reader checks little: a broken file fails where it fails
        if gguf.GGMLQuantizationType.__name__ in str(error):
            raise UnsupportedModelError(f"a tensor type in {path} ({error})", _gguf_types()) from error
        raise WeightsError(f"{path} cannot be read as GGUF: {error}") from error


def _scalars(reader: Any) -> dict[str, Any]:
    """Metadata that are single values; arrays (the tokenizer's) take seconds to convert and are not needed."""
    return {key: field.contents() for key, field in reader.fields.items() if field.types[0] != gguf.GGUFValueType.ARRAY}


def _shape(tensor: Any) -> tuple[int, ...]:
    """GGUF lists the fastest dimension first, torch last."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _dequantise(tensor: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    values: np.ndarray[Any, np.dtype[np.float32]] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return values.reshape(_shape(tensor))


def _unpermute(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """From the interleaved rotary layout (element 2i pairs with 2i + 1) to the halves layout (i with i + D/2)."""
    rows_per_half = values.shape[0] // heads // 2
    pairs = values.reshape(heads, rows_per_half, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _can_dequantise(tensor_type: Any) -> bool:
    _, type_size = gguf.GGML_QUANT_SIZES[tensor_type]
    try:
        gguf.quants.dequantize(np.zeros((1, type_size), dtype=np.uint8), tensor_type)
    except NotImplementedError:
        return False
    return True


def _gguf_types() -> list[str]:
    return [tensor_type.name for tensor_type in gguf.GGMLQuantizationType if _can_dequantise(tensor_type)]
