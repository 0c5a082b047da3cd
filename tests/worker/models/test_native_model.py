"""The native form of a decoder against its ops called one by one: the same bits, for each instruction set."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from kernels.cpu import build
from kernels.cpu.library import available_instruction_sets
from tests.worker.models.checkpoints import MODELS, make_reference, save
from tests.worker.models.paged import PagedModel
from worker.backend.cpu_backend import CpuBackend
from worker.backend.native_model import NativeModel
from worker.loader.checkpoint import Checkpoint
from worker.loader.load import LoadedModel, load_model, open_checkpoint
from worker.loader.resolve import resolve_model
from worker.models.decoder import Decoder

CPU = torch.device("cpu")
LONG = random.Random(1).choices(range(256), k=300)
"""Past the first split of the keys, so that a decode step merges partial results."""
SHORT = random.Random(2).choices(range(256), k=70)


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp(request.param)
    save(make_reference(request.param), directory)
    return open_checkpoint(resolve_model(str(directory)))


def both_forms(checkpoint: Checkpoint, backend: CpuBackend, dtype: torch.dtype) -> tuple[PagedModel, PagedModel]:
    """The decoder op by op, and what the loader makes of it."""
    decoder = Decoder(checkpoint.config, backend, checkpoint, dtype)
    plain = LoadedModel(
        model=decoder, config=checkpoint.config, dtype=dtype, weights_digest=b"", tokenizer_digest=b""
    )
    loaded = load_model(checkpoint, backend, dtype)
    assert isinstance(loaded.model, NativeModel)
    return PagedModel(plain, CPU), PagedModel(loaded, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("instruction_set", list(build.instruction_sets()))
def test_the_same_bits_as_op_by_op(checkpoint: Checkpoint, instruction_set: str, dtype: torch.dtype) -> None:
    if instruction_set not in available_instruction_sets():
        pytest.skip(f"this processor has no {instruction_set}")
    backend = CpuBackend(num_threads=2, instruction_set=instruction_set)
    plain, native = both_forms(checkpoint, backend, dtype)
    steps = [
        {"long": LONG[:180], "short": SHORT[:1], "other": SHORT[:33]},  # prompts of several sizes
        {"long": LONG[180:299], "short": SHORT[1:2], "new": SHORT[:5]},  # a chunk beside a decode step and a prompt
        {"long": LONG[299:], "short": SHORT[2:3], "other": SHORT[33:34], "new": SHORT[5:6]},  # decode steps only
        {"short": SHORT[3:4]},  # one token alone
    ]
    for work in steps:
        expected, actual = plain.step(work), native.step(work)
        for name in work:
            assert torch.equal(actual[name], expected[name]), name
            assert not actual[name].isnan().any()
    for ours, theirs in zip(
        (*native.kv_cache.keys, *native.kv_cache.values), (*plain.kv_cache.keys, *plain.kv_cache.values), strict=True
    ):
        assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))


@pytest.mark.parametrize("num_threads", [1, 3, 16])
def test_the_same_bits_on_any_number_of_threads(tmp_path: Path, num_threads: int) -> None:
    """More threads than cores among them: those that wait have to let the others run."""
    save(make_reference("qwen3_wide_heads"), tmp_path)
    checkpoint = open_checkpoint(resolve_model(str(tmp_path)))
    loaded = [load_model(checkpoint, CpuBackend(num_threads=n), torch.float32) for n in (2, num_threads)]
    expected, actual = (PagedModel(model, CPU).run("it", LONG, [200, 99, 1]) for model in loaded)
    assert torch.equal(actual, expected)
