"""The decoder over a paged KV cache against transformers, for every architecture and backend, in float32."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.worker.models.checkpoints import MODELS, SHARDED, assert_greedy, make_reference, reference_logits, save
from tests.worker.models.paged import PagedModel
from worker.backend.select import make_backend
from worker.input_batch import InputBatch
from worker.loader.load import LoadedModel, load_model, open_checkpoint
from worker.loader.resolve import resolve_model

CPU = torch.device("cpu")
BACKENDS = ("torch", "cpu")
PROMPTS = {
    name: random.Random(length).choices(range(256), k=length)
    for name, length in (("long", 90), ("block", 16), ("one", 1), ("short", 21))
}


@pytest.fixture(scope="module", params=MODELS)
def reference(request: pytest.FixtureRequest) -> tuple[str, PreTrainedModel]:
    return request.param, make_reference(request.param)


@pytest.fixture(scope="module")
def directory(reference: tuple[str, PreTrainedModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, model = reference
    path = tmp_path_factory.mktemp(name)
    save(model, path, sharded=name == SHARDED)
    return path


def load(directory: Path, backend_name: str, dtype: torch.dtype = torch.float32) -> tuple[LoadedModel, PagedModel]:
    backend = make_backend(backend_name, dtype, CPU, 1, False)
    loaded = load_model(open_checkpoint(resolve_model(str(directory))), backend, dtype)
    return loaded, PagedModel(loaded, CPU)


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_equals_transformers(reference: tuple[str, PreTrainedModel], directory: Path, backend_name: str) -> None:
    model = reference[1]
    expected = {name: reference_logits(model, tokens) for name, tokens in PROMPTS.items()}
    _, paged = load(directory, backend_name)

    whole = paged.step(PROMPTS)  # all prompts in one step
    for name, logits in expected.items():
        torch.testing.assert_close(whole[name], logits, atol=1e-4, rtol=0)

    chunked = paged.run("chunked", PROMPTS["long"], [1, 16, 31, 42])
    torch.testing.assert_close(chunked, expected["long"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_greedy_ids_equal_transformers(
    reference: tuple[str, PreTrainedModel], directory: Path, backend_name: str
) -> None:
    _, paged = load(directory, backend_name)
    for name, generated in paged.greedy(PROMPTS, 64).items():
        assert_greedy(reference[1], PROMPTS[name], generated)


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_a_prompt_chunk_beside_decoding_rows(
    reference: tuple[str, PreTrainedModel], directory: Path, backend_name: str
) -> None:
    _, paged = load(directory, backend_name)
    tokens = PROMPTS["long"]
    paged.step({"decoding": tokens[:60], "prefilling": tokens[:30]})
    mixed = paged.step({"decoding": tokens[60:61], "new": tokens[:5], "prefilling": tokens[30:]})
    expected = reference_logits(reference[1], tokens)
    torch.testing.assert_close(mixed["decoding"], expected[60:61], atol=1e-4, rtol=0)
    torch.testing.assert_close(mixed["new"], expected[:5], atol=1e-4, rtol=0)
    torch.testing.assert_close(mixed["prefilling"], expected[30:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_bfloat16_stays_near_float32(
    reference: tuple[str, PreTrainedModel], directory: Path, backend_name: str
) -> None:
    _, paged = load(directory, backend_name, torch.bfloat16)
    assert paged.kv_cache.keys[0].dtype == torch.bfloat16
    expected = reference_logits(reference[1], PROMPTS["long"])
    error = (paged.run("long", PROMPTS["long"], [50, 40]) - expected).abs()
    assert error.mean() < 0.02 * expected.std(), (error.mean(), expected.std())


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_only_the_wanted_logits_are_computed(directory: Path, backend_name: str) -> None:
    loaded, paged = load(directory, backend_name)
    tokens = PROMPTS["short"]
    everything = paged.step({"all": tokens})["all"]

    def logits_of(indices: list[int]) -> torch.Tensor:
        count = len(tokens)
        batch = InputBatch(
            token_ids=torch.tensor(tokens),
            positions=torch.arange(count, dtype=torch.int32),
            slot_mapping=torch.arange(count),
            query_start_loc=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([count], dtype=torch.int32),
            block_tables=torch.tensor([[0, 1]], dtype=torch.int32),
            logits_indices=torch.tensor(indices, dtype=torch.int64),
        )
        return loaded.model.forward(batch, paged.kv_cache)

    some = logits_of([20, 3])
    assert some.dtype == torch.float32
    torch.testing.assert_close(some, everything[[20, 3]], atol=1e-5, rtol=0)
    assert logits_of([]).shape == (0, loaded.config.vocab_size)
