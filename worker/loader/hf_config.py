"""ModelConfig from config.json.

transformers' configuration classes fill in what a file leaves open, for each architecture as its model would; what
they accept and the decoder does not compute is rejected here by name, never ignored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from worker.loader.errors import ModelConfigError, UnsupportedModelError
from worker.models.config import ModelConfig
from worker.models.registry import ARCHITECTURES, Architecture
from worker.models.rope import SUPPORTED_ROPE_TYPES, UnsupportedRopeError, make_rope


def read_hf_config(path: Path) -> ModelConfig:
    """Reads config.json. Raises ModelConfigError if it is broken, UnsupportedModelError naming what is not served."""
    from huggingface_hub.errors import StrictDataclassError  # what transformers' field validation raises

    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        architecture = _architecture(raw)
        return _convert(architecture, _transformers_config(architecture, raw))
    except UnsupportedRopeError as error:
        raise UnsupportedModelError(f"rope_type {error.rope_type!r}", SUPPORTED_ROPE_TYPES) from error
    except KeyError as error:
        raise ModelConfigError(f"{path}: {error.args[0]} is missing") from error
    except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        raise ModelConfigError(f"{path}: {' '.join(str(error).split())}") from error


def _architecture(raw: dict[str, Any]) -> Architecture:
    names = raw.get("architectures") or []
    architecture = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if architecture is None:
        what = f"architecture {', '.join(names)}" if names else "a config.json that names no architectures"
        raise UnsupportedModelError(what, ARCHITECTURES)
    quantization = raw.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "of unknown method")
        raise UnsupportedModelError(
            f"quantization {method} (quantization_config)", ("float32, bfloat16 and float16 safetensors", "GGUF files")
        )
    return architecture


def _transformers_config(architecture: Architecture, raw: dict[str, Any]) -> Any:
    import transformers

    config_class = getattr(transformers, architecture.name.removesuffix("ForCausalLM") + "Config")
    return config_class.from_dict(raw)


def _convert(architecture: Architecture, config: Any) -> ModelConfig:
    if config.hidden_act not in ("silu", "swish"):
        raise UnsupportedModelError(f"hidden_act {config.hidden_act!r}", ("silu",))
    if getattr(config, "mlp_bias", False):
        raise UnsupportedModelError("mlp_bias true", ("mlp_bias false",))
    rope_parameters = config.rope_parameters
    if rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1", ("rotation of whole heads",))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    return ModelConfig(
        architecture=architecture.name,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope=make_rope(rope_parameters, head_dim),
        tie_embeddings=config.tie_word_embeddings,
        qkv_bias=architecture.qkv_bias or attention_bias,
        output_bias=attention_bias,
        qk_norm=architecture.qk_norm,
        sliding_window=_sliding_window(config) if architecture.windowed else 0,
        checkpoint_dtype=_dtype(config.dtype),
    )


def _sliding_window(config: Any) -> int:
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    if len(kinds) > 1:
        raise UnsupportedModelError(f"a mix of layers ({', '.join(kinds)})", ("the same attention in all layers",))
    return 0 if kinds == ["full_attention"] else (config.sliding_window or 0)


def _dtype(stored: torch.dtype | str | None) -> torch.dtype:
    """float16 becomes bfloat16: float16 is not computed in, and its range overflows where bfloat16's does not."""
    name = "float32" if stored is None else str(stored).removeprefix("torch.")
    return torch.float32 if name == "float32" else torch.bfloat16
