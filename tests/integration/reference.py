"""SmolLM2 in transformers, and English prompts of given lengths in tokens: what the services are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler.frontend.tokenizer import load_tokenizer

TOLERANCE = 1e-3  # by how much a logit may be below the largest one and its token still count as the argmax


def load_reference(path: Path) -> LlamaForCausalLM:
    """The model of a GGUF file of architecture llama, dequantised to float32.

    Reads names and shapes by itself rather than with the worker's loader, which it is there to check.
    """
    reader = gguf.GGUFReader(path)

    def value(key: str) -> Any:
        field = reader.get_field(key)
        assert field is not None, f"{path} has no {key}"
        return field.contents()

    heads, kv_heads = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    config = LlamaConfig(
        hidden_size=value("llama.embedding_length"),
        intermediate_size=value("llama.feed_forward_length"),
        num_hidden_layers=value("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=value("llama.vocab_size"),
        max_position_embeddings=value("llama.context_length"),
        rms_norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
        tie_word_embeddings=True,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config)
    model.requires_grad_(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = tensors[names.get_name(name, try_suffixes=(".weight",)) or name]
            weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if "q_proj" in name or "k_proj" in name:  # the format interleaves the halves that RoPE pairs
                num = heads if "q_proj" in name else kv_heads
                weight = weight.reshape(num, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            parameter.copy_(torch.from_numpy(np.array(weight)))
    return model


def assert_greedy(model: LlamaForCausalLM, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Each output token is the model's argmax given the tokens before it, or within TOLERANCE of it in logit."""
    token_ids = torch.tensor([[*prompt, *output[:-1]]])
    with torch.no_grad():
        logits = model(token_ids, logits_to_keep=len(output)).logits[0]  # [len(output), V]
    chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    short = (logits.max(dim=1).values - chosen).numpy()
    worst = int(short.argmax())
    assert short[worst] <= TOLERANCE, (
        f"prompt of {len(prompt)} tokens: output {worst} is {output[worst]}, {short[worst]:.4f} below the argmax"
    )


def english_prompts(path: Path, lengths: Sequence[int]) -> list[list[int]]:
    """Token ids of pieces of English text, one per length, each cut out of another text."""
    tokenizer = load_tokenizer(str(path))
    texts = iter(sorted(topics.values(), key=len, reverse=True))
    prompts = {}
    for length in sorted(lengths, reverse=True):  # the longest text for the longest prompt
        prompts[length] = list(tokenizer.encode(next(texts)))[-length:]
    return [prompts[length] for length in lengths]
