"""The native form of a decoder against its ops called one by one: the same bits, for each instruction set."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.cpu import build
from kernels.cpu.library import available_instruction_sets
from tests.worker.models.checkpoints import MODELS, make_reference, save
from tests.worker.models.paged import PagedModel
from worker.backend.cpu_backend import CpuBackend
from worker.backend.native_model import NativeModel
from worker.backend.native_sampler import NativeSampler
from worker.input_batch import InputBatch
from worker.loader.checkpoint import Checkpoint
from worker.loader.load import LoadedModel, load_model, open_checkpoint
from worker.loader.resolve import resolve_model
from worker.models.decoder import Decoder
from worker.sampler import Sampled, SamplingColumns

CPU = torch.device("cpu")
LONG = random.Random(1).choices(range(256), k=300)
"""Past the first split of the keys, so that a decode step merges partial results."""
SHORT = random.Random(2).choices(range(256), k=70)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """One model for what does not depend on the architecture."""
    directory = tmp_path_factory.mktemp("tiny")
    save(make_reference("llama_tied"), directory)
    return open_checkpoint(resolve_model(str(directory)))


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp(request.param)
    save(make_reference(request.param), directory)
    return open_checkpoint(resolve_model(str(directory)))


def both_forms(checkpoint: Checkpoint, backend: CpuBackend, dtype: torch.dtype) -> tuple[PagedModel, PagedModel]:
    """The decoder op by op, and what the loader makes of it."""
    decoder = Decoder(checkpoint.config, backend, checkpoint, dtype)
    plain = LoadedModel(
        model=decoder, config=checkpoint.config, dtype=dtype, weight_bytes=0, weights_digest=b"", tokenizer_digest=b""
    )
    loaded = load_model(checkpoint, backend, dtype)
    assert isinstance(loaded.model, NativeModel)
    return PagedModel(plain, CPU), PagedModel(loaded, CPU)


@pytest.mark.parametrize(
    ("dtype", "quantization"), [(torch.float32, "none"), (torch.bfloat16, "none"), (torch.bfloat16, "int8")]
)
@pytest.mark.parametrize("instruction_set", list(build.instruction_sets()))
def test_the_same_bits_as_op_by_op(
    checkpoint: Checkpoint, instruction_set: str, dtype: torch.dtype, quantization: str
) -> None:
    if instruction_set not in available_instruction_sets():
        pytest.skip(f"this processor has no {instruction_set}")
    backend = CpuBackend(num_threads=2, instruction_set=instruction_set, quantization=quantization)
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
def test_the_same_bits_on_any_number_of_threads(tiny: Checkpoint, num_threads: int) -> None:
    """More threads than cores among them: those that wait have to let the others run."""
    loaded = [load_model(tiny, CpuBackend(num_threads=n), torch.float32) for n in (2, num_threads)]
    expected, actual = (PagedModel(model, CPU).run("it", LONG, [200, 99, 1]) for model in loaded)
    assert torch.equal(actual, expected)


def columns(num_rows: int, *, mixed: bool) -> SamplingColumns:
    """Greedy rows without logprobs; mixed: every third draws, every fourth wants logprobs."""
    rows = np.arange(num_rows)
    return SamplingColumns(
        temperature=np.where(mixed & (rows % 3 == 1), 0.9, 0.0),
        top_k=np.where(rows % 2, 20, 0).astype(np.int32),
        top_p=np.full(num_rows, 0.95),
        min_p=np.zeros(num_rows),
        num_logprobs=np.where(mixed & (rows % 4 == 0), rows % 5, -1).astype(np.int32),
        seeds=rows.astype(np.uint64),
        output_index=rows,
    )


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("instruction_set", list(build.instruction_sets()))
def test_samples_what_its_logits_say(tiny: Checkpoint, instruction_set: str, mixed: bool) -> None:
    if instruction_set not in available_instruction_sets():
        pytest.skip(f"this processor has no {instruction_set}")
    backend = CpuBackend(num_threads=2, instruction_set=instruction_set)
    loaded = load_model(tiny, backend, torch.float32)
    paged = PagedModel(loaded, CPU)
    batch = paged.batch({"long": LONG, "short": SHORT})
    for rows in ([], [300], [5, 0, 299], list(range(len(LONG) + len(SHORT)))):
        some = replace(batch, logits_indices=torch.tensor(rows, dtype=torch.int64))
        rows_columns = columns(len(rows), mixed=mixed)
        expected = NativeSampler(backend)(loaded.model.forward(some, paged.kv_cache), rows_columns)
        actual = loaded.model.sample(some, paged.kv_cache, rows_columns)
        for name in Sampled.__slots__:
            assert getattr(actual, name).tolist() == getattr(expected, name).tolist(), name


def test_a_batch_serves_again_with_other_values(tiny: Checkpoint) -> None:
    loaded = load_model(tiny, CpuBackend(num_threads=2), torch.float32)
    paged = PagedModel(loaded, CPU)
    batch, rows = paged.batch({"it": SHORT}), columns(2, mixed=True)
    batch = replace(batch, logits_indices=torch.tensor([0, 3]))

    def sampled(batch: InputBatch, rows: SamplingColumns) -> list[list[object]]:
        outcome = loaded.model.sample(batch, paged.kv_cache, rows)
        return [getattr(outcome, name).tolist() for name in Sampled.__slots__]

    first = loaded.model.sample(batch, paged.kv_cache, rows)
    kept = first.tokens.tolist(), first.logprobs.tolist()
    for step in range(1, 4):
        batch.token_ids.copy_((batch.token_ids + step) % 256)
        np.add(rows.output_index, 1, out=rows.output_index)
        other = replace(rows, output_index=rows.output_index.copy())
        assert sampled(batch, rows) == sampled(replace(batch, token_ids=batch.token_ids.clone()), other)
        assert sampled(batch, rows) == sampled(batch, other)
    assert (first.tokens.tolist(), first.logprobs.tolist()) == kept
    sampled(batch, rows)
    batch.slot_mapping[0] = -1
    with pytest.raises(ValueError, match="a slot of slot_mapping"):
        sampled(batch, rows)


def test_a_row_that_is_not_finite_has_no_token(tiny: Checkpoint) -> None:
    loaded = load_model(tiny, CpuBackend(num_threads=2), torch.float32)
    paged = PagedModel(loaded, CPU)
    paged.step({"bad": SHORT, "good": SHORT})
    batch = paged.batch({"bad": [3], "good": [3]})
    expected = loaded.model.sample(batch, paged.kv_cache, columns(2, mixed=False)).tokens
    paged.kv_cache.keys[0][batch.block_tables[0, 1]] = float("nan")
    for mixed in (False, True):
        sampled = loaded.model.sample(batch, paged.kv_cache, columns(2, mixed=mixed))
        assert sampled.finite.tolist() == [False, True]
        assert sampled.tokens[0] == 0
    assert loaded.model.sample(batch, paged.kv_cache, columns(2, mixed=False)).tokens.tolist() == [0, expected[1]]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("token_ids", 256, "a token id is outside 0..255"),
        ("positions", 512, "a position is outside 0..511"),
        ("slot_mapping", -1, "a slot of slot_mapping is outside 0..1023"),
        ("logits_indices", 70, "an entry of logits_indices is outside 0..69"),
        ("seq_lens", 69, "seq_lens be between"),
        ("query_start_loc", 1, "query_start_loc must rise from 0 to 70"),
        ("block_tables", 64, "block outside 0..63"),
    ],
)
def test_refuses_values_out_of_range_and_writes_nothing(tiny: Checkpoint, field: str, value: int, message: str) -> None:
    loaded = load_model(tiny, CpuBackend(num_threads=2), torch.float32)
    paged = PagedModel(loaded, CPU)
    batch = paged.batch({"it": SHORT})
    getattr(batch, field).view(-1)[0] = value
    with pytest.raises(ValueError, match=message):
        loaded.model.forward(batch, paged.kv_cache)
    assert all(keys.isnan().all() for keys in paged.kv_cache.keys)
