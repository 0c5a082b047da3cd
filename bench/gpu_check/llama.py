"""A randomly initialised Llama of the given sizes: for our worker in this process, and as files for others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.gpu_check.setting import Setting
from bench.gpu_check.sizes import Model, Sizes
from worker.backend.triton_backend import TritonBackend
from worker.loader.random_weights import RandomWeights
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder
from worker.models.rope import make_rope

_THETA = 500000.0
_EPS = 1e-5


def make_decoder(setting: Setting, backend: TritonBackend) -> Decoder:
    """On the setting's device, in its dtype."""
    model = setting.sizes.model
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        num_layers=model.layers,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_heads=model.heads,
        num_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab,
        max_positions=model.max_positions,
        rms_norm_eps=_EPS,
        rope=make_rope({"rope_theta": _THETA}, model.head_dim),
        tie_embeddings=False,
        qkv_bias=False,
        output_bias=False,
        qk_norm=False,
        sliding_window=0,
        checkpoint_dtype=setting.dtype,
    )
    return Decoder(config, backend, RandomWeights(config), setting.dtype)


def hf_config(sizes: Sizes) -> dict[str, Any]:
    """The fields of config.json."""
    model = sizes.model
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": sizes.dtype,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_positions,
        "rms_norm_eps": _EPS,
        "rope_theta": _THETA,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def write_files(directory: Path, sizes: Sizes) -> None:
    """What a scheduler and a worker with --load-format dummy need: a configuration, and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    (directory / "config.json").write_text(json.dumps(hf_config(sizes)))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {f"<{number}>": number for number in range(len(alphabet), sizes.model.vocab)}
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)} | words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


def step_bytes(model: Model, streams: int, context: int, itemsize: int) -> int:
    """Bytes that a decode step cannot help reading: all matrices once, the embeddings aside, and the keys and values of
    every sequence of so many tokens."""
    weights = _layers_weights(model) + model.hidden * model.vocab
    keys_and_values = streams * context * model.layers * 2 * model.kv_heads * model.head_dim
    return itemsize * (weights + keys_and_values)


def prompt_operations(model: Model, tokens: int) -> int:
    """Operations of a prompt: those of the layers' matrices, and of causal attention."""
    attention = model.layers * 4 * model.heads * model.head_dim * tokens * (tokens + 1) // 2
    return 2 * _layers_weights(model) * tokens + attention


def _layers_weights(model: Model) -> int:
    attention = model.hidden * model.head_dim * 2 * (model.heads + model.kv_heads)
    return model.layers * (attention + 3 * model.hidden * model.intermediate)
