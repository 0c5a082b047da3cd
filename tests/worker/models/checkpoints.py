"""Tiny random checkpoints of every architecture, made by transformers, which is also their reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

_SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama_tied": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=True)),
    "llama_biased_mha": lambda: LlamaForCausalLM(
        LlamaConfig(**_SIZES | {"num_key_value_heads": 4}, attention_bias=True)
    ),
    "llama_linear": lambda: LlamaForCausalLM(
        LlamaConfig(**_SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0})
    ),
    "llama_llama3": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, rope_parameters=_LLAMA3)),
    "llama_yarn": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, rope_parameters=_YARN)),
    "mistral_window": lambda: MistralForCausalLM(MistralConfig(**_SIZES, sliding_window=20)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SIZES)),
    "qwen3_wide_heads": lambda: Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=32, tie_word_embeddings=True)),
}
SHARDED = "qwen2"


def make_reference(name: str) -> PreTrainedModel:
    """A float32 model whose parameters are all random, norms and biases included, with logits a few units apart."""
    torch.manual_seed(sum(name.encode()))
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.normal_(1.0, 0.2)
            elif parameter_name.endswith(".bias"):
                parameter.normal_(0.0, 0.3)
            else:
                parameter.normal_(0.0, 0.15)
    return model


def save(model: PreTrainedModel, directory: Path, sharded: bool = False) -> None:
    model.save_pretrained(directory, max_shard_size="100KB" if sharded else "5GB")
    assert (directory / "model.safetensors.index.json").exists() == sharded


@torch.no_grad()
def reference_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[tokens, V] float32."""
    return model(torch.tensor([tokens])).logits[0].float()


def assert_greedy(model: PreTrainedModel, prompt: list[int], generated: list[int]) -> None:
    """Each generated token is the reference's most likely one after the prompt and the tokens before it, which makes
    them, from the first on, those that the reference would generate itself."""
    logits = reference_logits(model, prompt + generated)
    assert generated == logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
