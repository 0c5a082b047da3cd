"""--load-format dummy: a model from a configuration alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from worker.assembly import load_worker
from worker.config import ConfigError, WorkerConfig
from worker.loader.load import open_checkpoint
from worker.loader.resolve import resolve_model
from worker.models.weights import weight_shapes


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Holds config.json and nothing else."""
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    ).save_pretrained(tmp_path)
    return tmp_path


def config(model: Path, **values: str) -> WorkerConfig:
    return WorkerConfig(
        model=str(model), load_format="dummy", device="cpu", backend="torch", num_gpu_blocks_override=4, **values
    )


def test_tensors_are_random_of_the_right_shapes_and_the_same_each_time(directory: Path) -> None:
    one, other = (open_checkpoint(resolve_model(str(directory), with_weights=False)) for _ in range(2))
    assert dict(one.shapes) == weight_shapes(one.config)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors = [torch.empty(one.shapes[name], dtype=torch.bfloat16) for _ in range(3)]
    one.read(name, tensors[0])
    other.read(name, tensors[1])
    one.read(name.replace("1", "0"), tensors[2])
    assert torch.equal(tensors[0], tensors[1]) and not torch.equal(tensors[0], tensors[2])
    assert 0.018 < tensors[0].float().std() < 0.022
    assert one.weights_digest == other.weights_digest


def test_a_worker_serves_it(directory: Path) -> None:
    capacity = load_worker(config(directory)).capacity  # which runs its first steps
    assert (capacity.num_layers, capacity.logits_width, capacity.tokenizer_digest) == (2, 100, b"")


def test_a_gguf_file_has_weights_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"--load-format is dummy, but --model is .*model\.gguf; name a directory"):
        load_worker(config(file))
