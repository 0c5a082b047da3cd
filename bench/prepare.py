"""The benchmark's weights: SmolLM2-135M in bf16, dequantised once from the packaged GGUF, as a Hugging Face directory.

Every contender loads these same files.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from worker.loader.load import open_checkpoint
from worker.loader.resolve import resolve_model
from worker.models.weights import weight_shapes


def prepare(gguf: Path, directory: Path) -> Path:
    """Writes `directory` unless it is there; returns it."""
    if (directory / "model.safetensors").exists():
        return directory
    checkpoint = open_checkpoint(resolve_model(str(gguf)))
    config = checkpoint.config
    tensors = {}
    for name, shape in weight_shapes(config).items():
        tensors[name] = torch.empty(shape, dtype=torch.bfloat16)
        checkpoint.read(name, tensors[name])
    directory.mkdir(parents=True, exist_ok=True)
    description = {
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
    (directory / "config.json").write_text(json.dumps(description, indent=1))
    save_file(tensors, directory / "model.safetensors.part", {"format": "pt"})
    (directory / "model.safetensors.part").rename(directory / "model.safetensors")
    return directory
