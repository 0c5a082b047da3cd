"""The real SmolLM2 from its GGUF file: the un-permuted weights make sense, and equal transformers' reading of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity
from transformers import LlamaConfig, LlamaForCausalLM

from kernels.cpu.library import instruction_set
from kernels.quantize_int8 import dequantize_int8, quantize_int8
from scheduler.frontend.gguf_metadata import read_metadata
from tests.kernels.cases import MULTIPLIES_INTEGERS, ROUNDS_ACTIVATIONS
from tests.worker.models.checkpoints import reference_logits
from tests.worker.models.paged import PagedModel
from worker.backend.select import make_backend
from worker.backend.torch_backend import TorchBackend, TorchLinear
from worker.loader.checkpoint import Checkpoint
from worker.loader.load import LoadedModel, choose_dtype, load_model, open_checkpoint
from worker.loader.resolve import resolve_model

CPU = torch.device("cpu")
SMOLLM2 = Path(__file__).parents[3] / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"  # `make demo` fetches it

pytestmark = pytest.mark.skipif(not SMOLLM2.exists(), reason=f"{SMOLLM2} is absent: `make demo` fetches it")
CHAT = "<|im_start|> user Ċ What Ġis Ġthe Ġcapital Ġof ĠFrance ? <|im_end|> Ċ <|im_start|> ass istant Ċ"


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve_model(str(SMOLLM2)))


@pytest.fixture(scope="module")
def tokens() -> list[str]:
    """The byte-level vocabulary, by token id."""
    tokens = read_metadata(SMOLLM2)["tokenizer.ggml.tokens"]  # the gguf package takes seconds for them
    assert isinstance(tokens, list)
    return tokens


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> LlamaForCausalLM:
    """transformers' model with the tensors as our loader reads them."""
    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_positions,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            tie_word_embeddings=True,
        )
    )
    state = {name: torch.empty(shape) for name, shape in checkpoint.shapes.items()}
    for name, tensor in state.items():
        checkpoint.read(name, tensor)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected  # tied
    return model.eval()


@pytest.mark.parametrize(("backend_name", "num_tokens"), [("torch", 12), ("cpu", 64)])
def test_it_answers_and_equals_transformers(
    checkpoint: Checkpoint, reference: LlamaForCausalLM, tokens: list[str], backend_name: str, num_tokens: int
) -> None:
    backend = make_backend(backend_name, torch.float32, CPU, 2, False)
    paged = PagedModel(load_model(checkpoint, backend, torch.float32), CPU)
    prompt = [tokens.index(token) for token in CHAT.split()]
    answer = paged.greedy({"question": prompt}, num_tokens)["question"]
    assert "Paris" in "".join(tokens[token] for token in answer[:12])

    text = prompt + answer
    expected = reference_logits(reference, text)
    assert answer == expected[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
    # Its logits reach 37, where the numbers of float32 lie 4e-6 apart.
    torch.testing.assert_close(paged.run("again", text, [10, len(text) - 10]), expected, atol=1e-4, rtol=1e-5)


def test_it_answers_in_its_own_dtype(checkpoint: Checkpoint, tokens: list[str]) -> None:
    dtype = choose_dtype("auto", checkpoint.config)
    assert dtype == torch.bfloat16
    backend = make_backend("auto", dtype, CPU, 2, False)
    paged = PagedModel(load_model(checkpoint, backend, dtype), CPU)
    answer = paged.greedy({"question": [tokens.index(token) for token in CHAT.split()]}, 12)["question"]
    assert "Paris" in "".join(tokens[token] for token in answer)


class Dequantised(TorchBackend):
    """What int8 weights stand for, computed in float32."""

    def prepare_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> TorchLinear:
        return super().prepare_linear(dequantize_int8(*quantize_int8(weight)), bias)


def test_int8_weights_take_less_memory_and_answer_alike(checkpoint: Checkpoint, tokens: list[str]) -> None:
    backend = make_backend("cpu", torch.bfloat16, CPU, 2, False)
    quantised = make_backend("cpu", torch.bfloat16, CPU, 2, False, "int8")
    bf16, int8 = (load_model(checkpoint, it, torch.bfloat16) for it in (backend, quantised))
    shared = checkpoint.config.vocab_size * checkpoint.config.hidden_size * 2  # rows of embeddings stay in bfloat16
    share = 8 / 12 if instruction_set() in MULTIPLIES_INTEGERS + ROUNDS_ACTIVATIONS else 8 / 16
    assert (int8.weight_bytes - shared) / (bf16.weight_bytes - shared) == pytest.approx(share, abs=0.01)

    prompt = [tokens.index(token) for token in CHAT.split()]
    answer = PagedModel(int8, CPU).greedy({"question": prompt}, 12)["question"]
    assert "Paris" in "".join(tokens[token] for token in answer)

    def logits(loaded: LoadedModel) -> torch.Tensor:
        text = prompt + answer
        return PagedModel(loaded, CPU).run("it", text, [10, len(text) - 10])

    # What quantisation costs: measured 0.998 and one token of 56.
    assert cosine_similarity(logits(int8), logits(bf16)).mean() > 0.995
    assert (logits(int8).argmax(dim=1) == logits(bf16).argmax(dim=1)).float().mean() > 0.9

    # The arithmetic itself, with no other rounding but that of activations where the processor rounds them.
    reference = logits(load_model(checkpoint, Dequantised(torch.float32, CPU), torch.float32))
    ours = logits(load_model(checkpoint, quantised, torch.float32))
    if instruction_set() in ROUNDS_ACTIVATIONS:
        assert cosine_similarity(ours, reference).min() > 0.999
    else:
        atol = 2e-2 if instruction_set() in MULTIPLIES_INTEGERS else 1e-3  # of logits up to 37
        torch.testing.assert_close(ours, reference, atol=atol, rtol=0)
