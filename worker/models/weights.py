"""What a model asks of a checkpoint: tensors by their Hugging Face names.

`weight_shapes` is the complete list for a configuration; a checkpoint must hold these and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from worker.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


class WeightReader(Protocol):
    """Tensors of a checkpoint, read one at a time."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor by its Hugging Face name, known without reading any."""
        ...

    def read(self, name: str, out: torch.Tensor) -> None:
        """Fills `out`, which has the tensor's shape, converting to its dtype and device. `name` is one of `shapes`."""
        ...


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape by name of every tensor that the configuration needs."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tie_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        attention = f"{prefix}self_attn."
        for name, rows in (("q", config.q_size), ("k", config.kv_size), ("v", config.kv_size)):
            shapes[f"{attention}{name}_proj.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[f"{attention}{name}_proj.bias"] = (rows,)
        shapes[f"{attention}o_proj.weight"] = (hidden, config.q_size)
        if config.output_bias:
            shapes[f"{attention}o_proj.bias"] = (hidden,)
        if config.qk_norm:
            shapes[f"{attention}q_norm.weight"] = (config.head_dim,)
            shapes[f"{attention}k_norm.weight"] = (config.head_dim,)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (intermediate, hidden)
        shapes[f"{prefix}mlp.up_proj.weight"] = (intermediate, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, intermediate)
    return shapes
