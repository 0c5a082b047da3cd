"""The GPU's memory: the arithmetic on given readings, and the steps that are profiled, run on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.worker.conftest import TinyModel
from worker.backend.select import make_backend
from worker.device_io import Columns, HostIO
from worker.kv_cache import KVCache, KVCacheSpec
from worker.loader.load import LoadedModel, load_model, open_checkpoint
from worker.loader.resolve import resolve_model
from worker.memory import KVCacheMemoryError, MemoryProfile, num_kv_blocks
from worker.profiling import largest_steps, profile_memory
from worker.runner import Runner

CPU = torch.device("cpu")
GIB = 1 << 30
SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=8, block_size=16, dtype=torch.float32)  # 4096 bytes per block


def profile(total: int = 80, free_at_start: int = 79, free: int = 63, step: int = 2) -> MemoryProfile:
    """Readings in GiB; by default a model of 16 GiB on an otherwise idle GPU of 80."""
    return MemoryProfile(
        total=total * GIB,
        free_at_start=free_at_start * GIB,
        free=free * GIB,
        step=step * GIB,
        largest_step=(8192, 256),
    )


@pytest.mark.parametrize(
    ("readings", "utilization", "gib"),
    [
        (profile(), 0.9, 72 - 16 - 2),
        (profile(), 0.5, 40 - 16 - 2),
        (profile(step=10), 0.9, 72 - 16 - 10),
        (profile(), 1.0, 63 - 2),  # a GiB was never ours: the driver's
        (profile(free_at_start=30, free=14), 0.9, 14 - 2),  # another process has 50
        (profile(free_at_start=78, free=62), 0.9, 72 - 16 - 2),  # another's two lie outside our nine tenths
        (profile(), 0.2, 16 - 16 - 2),
    ],
)
def test_the_kv_cache_gets_what_model_and_step_leave(readings: MemoryProfile, utilization: float, gib: int) -> None:
    assert readings.kv_cache_bytes(utilization) == gib * GIB


def blocks(readings: MemoryProfile, utilization: float | None) -> int:
    return num_kv_blocks(
        SPEC,
        CPU,
        num_gpu_blocks_override=None,
        kv_cache_memory_bytes=None,
        gpu_memory_utilization=utilization,
        profile=readings,
    )


def test_the_default_is_nine_tenths_of_the_device() -> None:
    assert blocks(profile(), None) == blocks(profile(), 0.9) == 54 * GIB // 4096


def test_no_room_is_refused_with_the_figures() -> None:
    with pytest.raises(KVCacheMemoryError) as caught:
        blocks(profile(), 0.2)
    assert str(caught.value) == (
        "--gpu-memory-utilization 0.2 of 80.00 GiB, 63.00 GiB free; the model has 16.00 GiB, a step of 8192 tokens "
        "and 256 rows takes 2.00 GiB (--max-num-batched-tokens, --max-num-seqs): no room for a KV cache block of 4096 "
        "bytes"
    )


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ((8192, 256, 4096), [(8192, 256), (8192, 3)]),  # as many rows as can be, and as few
        ((512, 1024, 4096), [(512, 512), (512, 1)]),
        ((512, 4, 65), [(256, 4)]),  # four rows of 64 tokens are all there can be
        ((7, 2, 1), [(2, 2)]),
    ],
)
def test_the_largest_steps_have_all_tokens_in_most_and_in_fewest_rows(
    limits: tuple[int, int, int], steps: list[tuple[int, int]]
) -> None:
    assert [(step.num_tokens, step.num_rows) for step in largest_steps(*limits)] == steps


class RecordingIO(HostIO):
    """Keeps what the steps upload."""

    def __init__(self) -> None:
        self.uploads: list[Columns] = []

    def upload(self, columns: Columns) -> dict[str, torch.Tensor]:
        self.uploads.append(columns)
        return super().upload(columns)


class GivenReadings:
    """A gauge whose readings a test has chosen; it does the work all the same."""

    def __init__(self, peaks: list[int], error: Exception | None = None) -> None:
        self.peaks = peaks
        self.error = error

    def peak_of(self, work: Callable[[], None]) -> int:
        work()
        if self.error is not None:
            raise self.error
        return self.peaks.pop(0)

    def profile(self, step: int, largest_step: tuple[int, int]) -> MemoryProfile:
        return MemoryProfile(total=100, free_at_start=90, free=80, step=step, largest_step=largest_step)


@pytest.fixture(scope="module")
def loaded(llama: TinyModel) -> LoadedModel:
    backend = make_backend("torch", torch.float32, CPU, 1, False)
    return load_model(open_checkpoint(resolve_model(str(Path(llama.path)))), backend, torch.float32)


def run_profile(loaded: LoadedModel, io: HostIO, gauge: GivenReadings) -> MemoryProfile:
    spec = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=16, block_size=4, dtype=torch.float32)

    def make_runner(num_blocks: int) -> Runner:
        return Runner(loaded.model, KVCache(spec, num_blocks, CPU), io)

    return profile_memory(gauge, largest_steps(50, 7, 33), make_runner, spec.block_size, loaded.config.vocab_size)


def test_both_steps_run_through_the_model_and_the_greater_peak_counts(loaded: LoadedModel) -> None:
    io = RecordingIO()
    readings = run_profile(loaded, io, GivenReadings([30, 40]))
    assert (readings.step, readings.largest_step) == (40, (50, 7))
    many, few = (columns for columns in io.uploads if "token_ids" in columns)
    assert many["token_ids"].size == few["token_ids"].size == 50
    assert many["seq_lens"].tolist() == [8] + [7] * 6 and few["seq_lens"].tolist() == [25, 25]
    assert many["logits_indices"].size == 7  # every row samples


def test_a_step_that_does_not_fit_is_refused_by_the_flags_that_set_its_size(loaded: LoadedModel) -> None:
    with pytest.raises(KVCacheMemoryError, match="--max-num-batched-tokens 50 and --max-num-seqs 7: a step of that si"):
        run_profile(loaded, HostIO(), GivenReadings([], torch.OutOfMemoryError("no")))
