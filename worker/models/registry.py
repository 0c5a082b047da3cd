"""The architectures that are served, and what sets each apart.

An architecture is data, not a class: `worker.models.decoder` serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture.

    name: as in config.json's `architectures`.
    gguf_name: as in a GGUF file's `general.architecture`; llama covers Mistral, whose files cannot be told apart.
    permuted_qk: whether GGUF files hold the rows of q and k in the interleaved rotary layout.
    qkv_bias: projections always have a bias, whatever the configuration says.
    qk_norm: queries and keys are normalised per head before the rotation.
    windowed: the configuration may set a sliding window; others ignore such a field, as transformers does.
    """

    name: str
    gguf_name: str | None
    permuted_qk: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    windowed: bool = False


_ALL = (
    Architecture(name="LlamaForCausalLM", gguf_name="llama", permuted_qk=True),
    Architecture(name="MistralForCausalLM", gguf_name=None, windowed=True),
    Architecture(name="Qwen2ForCausalLM", gguf_name="qwen2", qkv_bias=True, windowed=True),
    Architecture(name="Qwen3ForCausalLM", gguf_name="qwen3", qk_norm=True, windowed=True),
)

ARCHITECTURES = {architecture.name: architecture for architecture in _ALL}
GGUF_ARCHITECTURES = {architecture.gguf_name: architecture for architecture in _ALL if architecture.gguf_name}
