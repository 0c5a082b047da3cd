"""What a directory's configuration and tensors must be, and the error for each that is not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker.models.checkpoints import make_reference, save
from worker.backend.select import make_backend
from worker.backend.torch_backend import TorchBackend
from worker.loader.errors import ModelConfigError, ModelError, UnsupportedModelError, WeightsError
from worker.loader.load import choose_dtype, load_model, open_checkpoint
from worker.loader.resolve import resolve_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save(make_reference("llama_tied"), tmp_path)
    return tmp_path


def edit_config(directory: Path, changes: dict[str, Any]) -> None:
    """Sets fields; the value None removes one."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_tensors(directory: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def load(directory: Path) -> None:
    backend = TorchBackend(torch.float32, torch.device("cpu"))
    load_model(open_checkpoint(resolve_model(str(directory))), backend, torch.float32)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, UnsupportedModelError,
         "architecture GPT2LMHeadModel is not supported; "
         "supported: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"),
        ({"architectures": None}, UnsupportedModelError, "names no architectures"),
        ({"quantization_config": {"quant_method": "awq"}}, UnsupportedModelError,
         "quantization awq .* supported: float32"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act 'gelu' is not supported; supported: silu"),
        ({"mlp_bias": True}, UnsupportedModelError, "mlp_bias"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, UnsupportedModelError,
         "rope_type 'dynamic' is not supported; supported: default, linear, llama3, yarn"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ModelConfigError, "factor"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
         UnsupportedModelError, "partial_rotary_factor"),
        ({"num_hidden_layers": "two"}, ModelConfigError, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, ModelConfigError, "num_layers is 0, must be at least 1"),
        ({"num_key_value_heads": 3}, ModelConfigError, "num_heads 4 is not a multiple of num_kv_heads 3"),
    ],
)  # fmt: skip
def test_configurations(changes: dict[str, Any], error: type[ModelError], message: str, directory: Path) -> None:
    edit_config(directory, changes)
    with pytest.raises(error, match=message):
        load(directory)


def test_a_config_that_is_no_json(directory: Path) -> None:
    (directory / "config.json").write_text("{")
    with pytest.raises(ModelConfigError, match=r"config\.json: Expecting property name"):
        load(directory)


def test_layers_of_different_windows(tmp_path: Path) -> None:
    save(make_reference("qwen3_wide_heads"), tmp_path)
    edit_config(
        tmp_path,
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
    )
    with pytest.raises(UnsupportedModelError, match=r"a mix of layers \(full_attention, sliding_attention\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), WeightsError, r"missing tensors: model\.norm\.weight$"),
        (lambda t: t.clear(), WeightsError, r"missing tensors: model\.embed_tokens\.weight, .* and 15 more"),
        (lambda t: t.update(extra=torch.zeros(1)), WeightsError, "unexpected tensors for LlamaForCausalLM: extra"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(8)}), WeightsError,
         r"model\.norm\.weight is \[8\], the configuration asks for \[64\]"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}), UnsupportedModelError,
         r"type I8 of tensor model\.norm\.weight in model\.safetensors is not supported; supported: F32, BF16, F16"),
    ],
)  # fmt: skip
def test_tensors(
    edit: Callable[[dict[str, torch.Tensor]], object], error: type[ModelError], message: str, directory: Path
) -> None:
    edit_tensors(directory, edit)
    with pytest.raises(error, match=message):
        load(directory)


def test_a_head_size_without_a_native_kernel(directory: Path) -> None:
    edit_config(directory, {"head_dim": 8})
    backend = make_backend("cpu", torch.float32, torch.device("cpu"), 1, False)
    with pytest.raises(UnsupportedModelError, match=r"a head size of 8 on backend cpu .* multiples of 16, any on"):
        load_model(open_checkpoint(resolve_model(str(directory))), backend, torch.float32)


def test_a_truncated_file(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read as safetensors"):
        load(directory)


def test_tensors_that_follow_from_others_may_be_there(directory: Path) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()  # the embeddings are tied
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    edit_tensors(directory, add)
    load(directory)


@pytest.mark.parametrize(
    ("stored", "chosen"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.bfloat16), (None, torch.float32)],
)
def test_dtype(stored: str | None, chosen: torch.dtype, directory: Path) -> None:
    edit_config(directory, {"dtype": stored})
    config = open_checkpoint(resolve_model(str(directory))).config
    assert choose_dtype("auto", config) == chosen
    assert choose_dtype("float32", config) == torch.float32
    with pytest.raises(ModelConfigError, match="--dtype is 'float16', must be one of auto, float32, bfloat16"):
        choose_dtype("float16", config)


def test_digests(directory: Path) -> None:
    def digests() -> tuple[bytes, bytes]:
        checkpoint = open_checkpoint(resolve_model(str(directory)))
        return checkpoint.weights_digest, checkpoint.tokenizer_digest

    weights, tokenizer = digests()
    assert len(weights) == 32 and tokenizer == b""
    (directory / "tokenizer.json").write_bytes(b"a tokenizer")
    assert digests() == (weights, hashlib.sha256(b"a tokenizer").digest())
    edit_tensors(directory, lambda tensors: tensors["model.norm.weight"].add_(1))
    other_weights, _ = digests()
    assert other_weights != weights
    edit_config(directory, {"rms_norm_eps": 1e-3})  # changes the KV cache's contents as well
    assert digests()[0] not in (weights, other_weights)
