"""Exact mode: a sequence's logits are the same bits whatever it shares its steps with and however it is chunked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tests.worker.models.checkpoints import make_reference, save
from tests.worker.models.paged import PagedModel
from worker.backend.select import make_backend
from worker.loader.load import LoadedModel, load_model, open_checkpoint
from worker.loader.resolve import resolve_model

PROMPT = random.Random(0).choices(range(256), k=70)
CONTINUATION = random.Random(1).choices(range(256), k=12)
OTHERS = {f"other{index}": random.Random(index).choices(range(256), k=1 + 4 * index) for index in range(31)}


def load(directory: Path, num_threads: int) -> LoadedModel:
    backend = make_backend("cpu", torch.float32, torch.device("cpu"), num_threads, True)
    return load_model(open_checkpoint(resolve_model(str(directory))), backend, torch.float32)


def paged(loaded: LoadedModel) -> PagedModel:
    return PagedModel(loaded, torch.device("cpu"), num_blocks=400)


@pytest.fixture(scope="module", params=["llama_llama3", "mistral_window", "qwen3_wide_heads"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = tmp_path_factory.mktemp(request.param)
    save(make_reference(request.param), directory)
    return load(directory, num_threads=2)


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> torch.Tensor:
    """[70 + 12, V]: the prompt whole, then one token a step."""
    return paged(loaded).run("alone", PROMPT + CONTINUATION, [70] + [1] * 12)


def test_among_31_others(loaded: LoadedModel, alone: torch.Tensor) -> None:
    model = paged(loaded)
    rows = list(OTHERS.items())
    logits = [model.step(dict([*rows[:15], ("it", PROMPT), *rows[15:]]))["it"]]
    for step, token in enumerate(CONTINUATION):
        logits.append(model.step({"it": [token]} | {name: [tokens[0]] for name, tokens in rows[step:]})["it"])
    assert torch.equal(torch.cat(logits), alone)


@pytest.mark.parametrize("chunks", [[16, 16, 16, 16, 18], [1, 68, 13], [33, 49], [82]])
def test_in_chunks(loaded: LoadedModel, alone: torch.Tensor, chunks: list[int]) -> None:
    assert torch.equal(paged(loaded).run("chunked", PROMPT + CONTINUATION, chunks), alone)


def test_with_another_number_of_threads(tmp_path: Path) -> None:
    save(make_reference("llama_llama3"), tmp_path)
    one, two = (paged(load(tmp_path, num_threads)).run("it", PROMPT, [40, 30]) for num_threads in (1, 2))
    assert torch.equal(one, two)
