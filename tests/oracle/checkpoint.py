"""Writes a tiny Llama checkpoint as a Hugging Face directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.oracle.tokenizer import BOS, CHAT_TEMPLATE, END_OF_TURN, EOS, SPECIAL_TOKENS, VOCAB_SIZE, write_tokenizer

MAX_POSITIONS = 4096
RMS_NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """Sizes of a Llama model. hidden need not equal num_heads * head_dim."""

    hidden: int
    intermediate: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    vocab: int = VOCAB_SIZE

    def config(self) -> dict[str, object]:
        """The content of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": MAX_POSITIONS,
            "rms_norm_eps": RMS_NORM_EPS,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "torch_dtype": "float32",
        }

    def random_tensors(self, rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Every tensor of the checkpoint by name: norms are 1, all else is random. An oracle replaces what matters to
        it; what it leaves random must not reach the logits."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes = {
            "self_attn.q_proj": (q, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, q),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }
        tensors = {
            "model.embed_tokens.weight": rng.standard_normal((self.vocab, self.hidden)),
            "model.norm.weight": np.ones(self.hidden),
            "lm_head.weight": rng.standard_normal((self.vocab, self.hidden)),
        }
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}"
            tensors[f"{prefix}.input_layernorm.weight"] = np.ones(self.hidden)
            tensors[f"{prefix}.post_attention_layernorm.weight"] = np.ones(self.hidden)
            for name, shape in shapes.items():
                tensors[f"{prefix}.{name}.weight"] = rng.standard_normal(shape) / np.sqrt(shape[1])
        return tensors


def write_checkpoint(directory: Path, shape: LlamaShape, tensors: dict[str, NDArray[np.float64]]) -> None:
    """Writes configuration, weights in float32, tokenizer and generation configuration into the directory, which is
    created. Sampling is left unset in generation_config.json; the ends are EOS and END_OF_TURN."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(directory)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[EOS],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
    }
    contents = {
        "config.json": shape.config(),
        "tokenizer_config.json": tokenizer_config,
        "generation_config.json": {"bos_token_id": BOS, "eos_token_id": [EOS, END_OF_TURN]},
    }
    for name, content in contents.items():
        (directory / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def rms_norm(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """x [..., C] over the root of its mean square, in float64, with weight 1."""
    normed: NDArray[np.float64] = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + RMS_NORM_EPS)
    return normed


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """logits [..., V] -> natural log of the probabilities."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logprobs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logprobs
