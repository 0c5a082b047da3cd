"""ModelConfig from a GGUF file's metadata and tensor list.

Keys are those of the GGUF specification (ggml-org/ggml, docs/gguf.md). What metadata does not say, the tensors do:
no output.weight means tied embeddings, a bias tensor means biases, rope_freqs.weight holds llama3's rotary scaling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from worker.loader.errors import ModelConfigError, UnsupportedModelError
from worker.models.config import ModelConfig, Rope
from worker.models.registry import GGUF_ARCHITECTURES, Architecture
from worker.models.rope import SUPPORTED_ROPE_TYPES, UnsupportedRopeError, divide_frequencies, make_rope

ROPE_DIVISORS = "rope_freqs.weight"


def gguf_architecture(metadata: Mapping[str, Any]) -> Architecture:
    """The architecture that general.architecture names. Raises UnsupportedModelError."""
    name = metadata.get("general.architecture")
    if name not in GGUF_ARCHITECTURES:
        raise UnsupportedModelError(f"GGUF architecture {name!r}", GGUF_ARCHITECTURES)
    return GGUF_ARCHITECTURES[name]


def read_gguf_config(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    rope_divisors: Sequence[float] | None,
) -> ModelConfig:
    """metadata: scalar values by key. tensor_shapes: by GGUF name, rows first. rope_divisors: of rope_freqs.weight.

    Raises ModelConfigError naming a key that is missing or wrong, UnsupportedModelError naming what is not served.
    """
    architecture = gguf_architecture(metadata)
    prefix = architecture.gguf_name
    if metadata.get(f"{prefix}.expert_count", 0):
        raise UnsupportedModelError(f"a mixture of experts ({prefix}.expert_count)", ("dense models",))
    if metadata.get("split.count", 1) > 1:
        raise UnsupportedModelError("a GGUF file that is one of several (split.count)", ("single GGUF files",))
    try:
        num_heads = metadata[f"{prefix}.attention.head_count"]
        hidden_size = metadata[f"{prefix}.embedding_length"]
        head_dim = metadata.get(f"{prefix}.attention.key_length", hidden_size // num_heads)
        return ModelConfig(
            architecture=architecture.name,
            num_layers=metadata[f"{prefix}.block_count"],
            hidden_size=hidden_size,
            intermediate_size=metadata[f"{prefix}.feed_forward_length"],
            num_heads=num_heads,
            num_kv_heads=metadata.get(f"{prefix}.attention.head_count_kv", num_heads),
            head_dim=head_dim,
            vocab_size=tensor_shapes["token_embd.weight"][0],
            max_positions=metadata[f"{prefix}.context_length"],
            rms_norm_eps=metadata[f"{prefix}.attention.layer_norm_rms_epsilon"],
            rope=_rope(metadata, f"{prefix}.rope.", head_dim, rope_divisors),
            tie_embeddings="output.weight" not in tensor_shapes,
            qkv_bias="blk.0.attn_q.bias" in tensor_shapes,
            output_bias="blk.0.attn_output.bias" in tensor_shapes,
            qk_norm=architecture.qk_norm,
            sliding_window=metadata.get(f"{prefix}.attention.sliding_window", 0) if architecture.windowed else 0,
            checkpoint_dtype=torch.bfloat16,
        )
    except KeyError as error:
        raise ModelConfigError(f"the GGUF file lacks {error.args[0]}") from error
    except UnsupportedRopeError as error:
        raise UnsupportedModelError(f"rope_type {error.rope_type!r}", SUPPORTED_ROPE_TYPES) from error
    except (ValueError, TypeError) as error:
        raise ModelConfigError(f"the GGUF metadata is broken: {error}") from error


def _rope(metadata: Mapping[str, Any], prefix: str, head_dim: int, divisors: Sequence[float] | None) -> Rope:
    if metadata.get(f"{prefix}dimension_count", head_dim) != head_dim:
        raise UnsupportedModelError(f"{prefix}dimension_count other than the head size", ("rotation of whole heads",))
    if metadata.get(f"{prefix}scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"{prefix}scaling.attn_factor other than 1", ("the factor of the YaRN paper",))
    parameters = {
        "rope_theta": metadata.get(f"{prefix}freq_base", 10000.0),
        "rope_type": _rope_type(metadata.get(f"{prefix}scaling.type", "none")),
        "factor": metadata.get(f"{prefix}scaling.factor"),
        "original_max_position_embeddings": metadata.get(f"{prefix}scaling.original_context_length"),
        "beta_fast": metadata.get(f"{prefix}scaling.yarn_beta_fast"),
        "beta_slow": metadata.get(f"{prefix}scaling.yarn_beta_slow"),
    }
    rope = make_rope({key: value for key, value in parameters.items() if value is not None}, head_dim)
    return rope if divisors is None else divide_frequencies(rope, divisors)


def _rope_type(scaling_type: str) -> str:
    """GGUF's name for no scaling is none, transformers' is default."""
    return "default" if scaling_type == "none" else scaling_type
