"""Tiny random Llama checkpoints, made by transformers, and their reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

POISON = 200
"""A token whose embedding is NaN in the `poisoned_llama` checkpoint."""


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A checkpoint, and the transformers model that it was saved from: 256 tokens wide, 512 positions, 2 layers."""

    path: Path
    reference: LlamaForCausalLM

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """What the reference goes on with."""
        output = self.reference.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False)
        return [int(token) for token in output[0, len(prompt) :]]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A well-behaved one."""
    return _saved(_make(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def poisoned_llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """One whose logits are NaN for any sequence that holds the token POISON."""
    reference = _make()
    with torch.no_grad():
        reference.get_input_embeddings().weight[POISON] = torch.nan
    return _saved(reference, tmp_path_factory.mktemp("poisoned"))


def _make() -> LlamaForCausalLM:
    torch.manual_seed(6)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.15,  # logits a few units apart, so that no two are nearly equal
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def _saved(reference: LlamaForCausalLM, directory: Path) -> TinyModel:
    reference.save_pretrained(directory)
    return TinyModel(directory, reference)
