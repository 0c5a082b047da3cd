"""Tiny random Llama checkpoints, made by transformers, and their reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.worker.models.checkpoints import make_reference, save

POISON = 200
"""A token whose embedding is NaN in the `poisoned_llama` checkpoint."""


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A checkpoint, and the transformers model that it was saved from."""

    path: Path
    reference: PreTrainedModel


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A well-behaved one: 256 tokens wide, 512 positions."""
    return _saved(make_reference("llama_tied"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def poisoned_llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """One whose logits are NaN for any sequence that holds the token POISON."""
    reference = make_reference("llama_biased_mha")
    with torch.no_grad():
        reference.get_input_embeddings().weight[POISON] = torch.nan
    return _saved(reference, tmp_path_factory.mktemp("poisoned"))


def _saved(reference: PreTrainedModel, directory: Path) -> TinyModel:
    save(reference, directory)
    return TinyModel(directory, reference)
