"""The benchmark's model: SmolLM2-135M in bf16, dequantised once from the packaged GGUF, in the formats of all engines.

Weights, tokenizer and configuration as a Hugging Face directory, and beside it the same weights as a bf16 GGUF file.
`python -m bench.prepare` makes what is missing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from scheduler.frontend.gguf_tokenizer import read_gguf
from worker.loader.load import open_checkpoint
from worker.loader.resolve import resolve_model
from worker.models.config import ModelConfig
from worker.models.weights import weight_shapes

_SOURCE = Path(".models/SmolLM2-135M-Instruct.Q4_1.gguf")
_TARGET = Path(".models/SmolLM2-135M-Instruct-bf16")
_OF_THE_FILE = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Where the formats are."""

    directory: Path
    gguf: Path


def prepare() -> Model:
    """Makes the files that are not there."""
    path = _TARGET / "model.gguf"
    _TARGET.mkdir(parents=True, exist_ok=True)
    if not (_TARGET / "tokenizer.json").exists():
        _write_directory()
    if not path.exists():
        _write_gguf(path)
    return Model(directory=_TARGET, gguf=path)


def _write_directory() -> None:
    checkpoint = open_checkpoint(resolve_model(str(_SOURCE)))
    tensors = {}
    for name, shape in weight_shapes(checkpoint.config).items():
        tensors[name] = torch.empty(shape, dtype=torch.bfloat16)
        checkpoint.read(name, tensors[name])
    parts = read_gguf(_SOURCE)
    assert parts.backend is not None
    description = _description(checkpoint.config) | {
        "bos_token_id": parts.bos_token_id,
        "eos_token_id": parts.eos_token_ids[0],
    }
    (_TARGET / "config.json").write_text(json.dumps(description, indent=1))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": parts.special_tokens["eos_token"]}
    (_TARGET / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=1))
    save_file(tensors, _TARGET / "model.safetensors", {"format": "pt"})
    parts.backend.save(str(_TARGET / "tokenizer.json"))  # last: its presence says that the others are whole


def _description(config: ModelConfig) -> dict[str, object]:
    return {
        "architectures": [config.architecture],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": 100000.0,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _write_gguf(path: Path) -> None:
    """The source's metadata, its matrices in bf16, its vectors rounded to that but kept in fp32, as is the custom."""
    source = gguf.GGUFReader(str(_SOURCE))
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    for name, field in source.fields.items():
        if not name.startswith(_OF_THE_FILE):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in source.tensors:
        values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))).bfloat16()
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values.float().numpy())
        else:
            raw = values.view(torch.uint8).numpy()
            writer.add_tensor(tensor.name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


if __name__ == "__main__":
    print(prepare())
