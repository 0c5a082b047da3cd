"""GGUF files written by the gguf package from tiny checkpoints give the logits of the checkpoints."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.worker.models.checkpoints import make_reference, reference_logits
from tests.worker.models.paged import PagedModel
from worker.backend.torch_backend import TorchBackend
from worker.loader.errors import UnsupportedModelError, WeightsError
from worker.loader.gguf_checkpoint import GGUFCheckpoint
from worker.loader.load import load_model

TOKENS = random.Random(1).choices(range(256), k=50)
ARCHITECTURES = {
    "llama_tied": gguf.MODEL_ARCH.LLAMA,
    "llama_biased_mha": gguf.MODEL_ARCH.LLAMA,
    "llama_linear": gguf.MODEL_ARCH.LLAMA,
    "llama_llama3": gguf.MODEL_ARCH.LLAMA,
    "llama_yarn": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3_wide_heads": gguf.MODEL_ARCH.QWEN3,
}


def interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """A GGUF file of llama puts the two halves of a head's rows in turns."""
    order = [
        head * (len(rows) // heads) + half * (len(rows) // heads // 2) + pair
        for head in range(heads)
        for pair in range(len(rows) // heads // 2)
        for half in range(2)
    ]
    return rows[order]


def write_rope(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    rope = model.config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (
            np.arange(0, model.config.head_dim, 2, dtype=np.float32) / model.config.head_dim
        )
        divisors = plain / model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", divisors.astype(np.float32))


def write(
    model: PreTrainedModel,
    architecture: gguf.MODEL_ARCH,
    path: Path,
    tensor_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> None:
    """Norms and biases are float32, as in every GGUF file; matrices of tensor_type."""
    config = model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    writer.add_token_list([f"token{index}" for index in range(config.vocab_size)])
    write_rope(writer, model)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if architecture == gguf.MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = interleaved(values, heads)
        kind = tensor_type if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(
            names.get_name(name, (".weight", ".bias")), gguf.quants.quantize(values, kind), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(path: Path) -> torch.Tensor:
    device = torch.device("cpu")
    loaded = load_model(GGUFCheckpoint(path), TorchBackend(torch.float32, device), torch.float32)
    return PagedModel(loaded, device).run("a", TOKENS, [30, 20])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_files_equal_their_source(name: str, tmp_path: Path) -> None:
    model = make_reference(name)
    write(model, ARCHITECTURES[name], tmp_path / "model.gguf")
    torch.testing.assert_close(logits(tmp_path / "model.gguf"), reference_logits(model, TOKENS), atol=1e-4, rtol=0)


@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0"])
def test_other_types_are_dequantised(type_name: str, tmp_path: Path) -> None:
    model = make_reference("llama_tied")
    tensor_type = gguf.GGMLQuantizationType[type_name]
    write(model, gguf.MODEL_ARCH.LLAMA, tmp_path / "model.gguf", tensor_type)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                stored = gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), tensor_type), tensor_type)
                parameter.copy_(torch.tensor(stored))
    torch.testing.assert_close(logits(tmp_path / "model.gguf"), reference_logits(model, TOKENS), atol=1e-4, rtol=0)


def test_digests(tmp_path: Path) -> None:
    model = make_reference("llama_tied")
    for name in ("one", "same", "other"):
        if name == "other":
            with torch.no_grad():
                model.model.norm.weight += 0.01
        write(model, gguf.MODEL_ARCH.LLAMA, tmp_path / f"{name}.gguf")
    one, same, other = (GGUFCheckpoint(tmp_path / f"{name}.gguf") for name in ("one", "same", "other"))
    assert one.weights_digest == same.weights_digest != other.weights_digest
    tokens = "\0".join(f"token{index}" for index in range(256))
    assert one.tokenizer_digest == hashlib.sha256(tokens.encode()).digest()


def write_header(path: Path, architecture: str, tensor_type: int | None = None) -> None:
    """A file with no metadata but its architecture, and one tensor of the given type if any."""
    writer = gguf.GGUFWriter(path, architecture)
    if tensor_type is not None:
        writer.add_tensor("token_embd.weight", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if tensor_type is not None:
        content = path.read_bytes()
        at = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8  # dimensions, their sizes
        path.write_bytes(content[:at] + tensor_type.to_bytes(4, "little") + content[at + 4 :])


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    write_header(tmp_path / "model.gguf", "mamba")
    with pytest.raises(
        UnsupportedModelError, match=r"GGUF architecture 'mamba' is not .* supported: llama, qwen2, qwen3"
    ):
        GGUFCheckpoint(tmp_path / "model.gguf")


@pytest.mark.parametrize(("tensor_type", "named"), [(9999, "9999"), (int(gguf.GGMLQuantizationType.I8), "I8")])
def test_an_unsupported_type_is_named(tensor_type: int, named: str, tmp_path: Path) -> None:
    write_header(tmp_path / "model.gguf", "llama", tensor_type)
    with pytest.raises(UnsupportedModelError, match=f"{named}.* supported: F32, F16, Q4_0"):
        GGUFCheckpoint(tmp_path / "model.gguf")


@pytest.mark.parametrize("content", [b"", b"not a GGUF file at all", b"GGUF\3\0\0\0"])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.gguf cannot be read as GGUF"):
        GGUFCheckpoint(path)


@pytest.mark.parametrize("cut", [1, 100_000])
def test_a_truncated_file_is_named_with_both_sizes(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(make_reference("llama_tied"), gguf.MODEL_ARCH.LLAMA, path)
    whole = max(tensor.data_offset + tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
    path.write_bytes(path.read_bytes()[: whole - cut])
    with pytest.raises(WeightsError) as caught:
        GGUFCheckpoint(path)
    assert str(caught.value) == f"{path} is truncated: {whole - cut} bytes, {whole} needed"
