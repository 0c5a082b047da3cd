"""The oracle checkpoints against transformers, and how much a damaged KV cache shows in the uniform one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.oracle.lookup import LookupOracle, chain
from tests.oracle.tokenizer import BOS, EOS, VOCAB_SIZE, byte_ids
from tests.oracle.uniform import UniformOracle

BLOCK = 16
ORACLES: list[LookupOracle | UniformOracle] = [LookupOracle(chain(*byte_ids("abcdef"))), UniformOracle()]


def transformers_logprobs(directory: Path, token_ids: Sequence[int]) -> NDArray[np.float64]:
    """Log probabilities [len(token_ids), V] of the token after each prefix, computed in float32."""
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0]
    return torch.log_softmax(logits.double(), dim=-1).numpy()


@pytest.mark.parametrize("oracle", ORACLES, ids=["lookup", "uniform"])
def test_closed_form_equals_transformers(oracle: LookupOracle | UniformOracle, tmp_path: Path) -> None:
    token_ids = np.random.default_rng(1).integers(VOCAB_SIZE, size=200).tolist()
    reference = transformers_logprobs(oracle.write(tmp_path), token_ids)
    for length in (1, 2, 15, 16, 17, 100, 200):
        np.testing.assert_allclose(oracle.expected_logprobs(token_ids[:length]), reference[length - 1], atol=1e-4)


def damaged_reads(token_ids: list[int], foreign: list[int], block: int) -> dict[str, list[int]]:
    """What attention reads if one block of a context is missing, read twice, or another sequence's."""
    start, end = block * BLOCK, (block + 1) * BLOCK
    head, damaged, tail = token_ids[:start], token_ids[start:end], token_ids[end:]
    return {"missing": head + tail, "doubled": head + damaged + damaged + tail, "foreign": head + foreign + tail}


@pytest.mark.parametrize("length", [100, 200, 300])
def test_one_damaged_block_shows_in_the_uniform_oracle(length: int) -> None:
    oracle, rng = UniformOracle(), np.random.default_rng(length)
    for _ in range(20):
        token_ids = rng.integers(VOCAB_SIZE, size=length).tolist()
        foreign = rng.integers(VOCAB_SIZE, size=BLOCK).tolist()
        intact = oracle.expected_logprobs(token_ids)
        likely = np.argsort(intact)[-5:]  # the tokens whose logprobs a request can see
        for damage, read in damaged_reads(token_ids, foreign, int(rng.integers(length // BLOCK))).items():
            change = np.abs(oracle.logprobs_of_read(token_ids[-1], read) - intact)[likely].max()
            assert 0.1 < change < 6, f"{damage} block in {length} tokens changes the likely logprobs by {change:.3f}"


def test_greedy_walks_of_the_uniform_oracle_vary() -> None:
    """A walk that repeated one token would make its blocks indistinguishable."""
    oracle = UniformOracle()
    token_ids = byte_ids("The quick brown fox")
    for _ in range(64):
        token_ids.append(int(np.argmax(oracle.expected_logprobs(token_ids))))
    assert len(set(token_ids[-64:])) > 16


def test_lookup_follows_its_lanes_to_eos() -> None:
    oracle = LookupOracle(chain(BOS, *byte_ids("no"), EOS))
    assert oracle.continuation([BOS], 8) == [*byte_ids("no"), EOS]
    assert oracle.continuation([BOS], 1) == byte_ids("n")
    with pytest.raises(ValueError, match="twice"):
        chain(1, 2, 1, 3)


def test_the_tokenizer_is_a_byte_for_an_id(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(LookupOracle({}).write(tmp_path))
    text = "naïve 🦊 <|eos|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == [*byte_ids("naïve 🦊 "), EOS]
    assert tokenizer.decode(ids) == text
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    ) == ("user: hi<|end_of_turn|>assistant: ")
