"""A KV cache in float8: the scales measured for it, and how near the logits stay to those of full precision."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch

from tests.worker.models.checkpoints import make_reference, reference_logits, save
from tests.worker.models.paged import PagedModel
from worker.assembly import load_worker
from worker.backend.select import make_backend
from worker.config import ConfigError, WorkerConfig
from worker.kv_cache import KVCache
from worker.loader.load import LoadedModel, load_model, open_checkpoint
from worker.loader.resolve import resolve_model

CPU = torch.device("cpu")
PROMPT = random.Random(5).choices(range(256), k=90)


@pytest.fixture(scope="module", params=["llama_tied", "qwen3_wide_heads"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def loaded(name: str, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory: Path = tmp_path_factory.mktemp(name)
    save(make_reference(name), directory)
    backend = make_backend("torch", torch.float32, CPU, 1, False)
    return load_model(open_checkpoint(resolve_model(str(directory))), backend, torch.float32)


def test_logits_stay_near_those_of_full_precision(name: str, loaded: LoadedModel) -> None:
    paged = PagedModel(loaded, CPU, fp8=True)
    assert paged.kv_cache.keys[0].dtype == torch.float8_e4m3fn
    expected = reference_logits(make_reference(name), PROMPT)
    error = (paged.run("it", PROMPT, [50, 39, 1]) - expected).abs()
    assert 0 < error.mean() < 0.06 * expected.std(), (error.mean(), expected.std())


def test_scales_are_powers_of_two_and_the_same_after_a_restart(loaded: LoadedModel) -> None:
    one, other = (PagedModel(loaded, CPU, fp8=True).kv_cache for _ in range(2))
    scales = torch.stack([*one.key_scales, *one.value_scales])
    assert torch.equal(scales, torch.stack([*other.key_scales, *other.value_scales]))
    assert scales.shape == (2 * loaded.config.num_layers, loaded.config.num_kv_heads)
    assert torch.equal(scales, torch.exp2(torch.log2(scales).round()))


def test_what_is_stored_lies_well_inside_the_types_range(loaded: LoadedModel) -> None:
    paged = PagedModel(loaded, CPU, fp8=True)
    paged.step({"it": PROMPT})
    for stored in (*paged.kv_cache.keys, *paged.kv_cache.values):
        largest = stored.float().nan_to_num(0.0).abs().amax()
        assert 448 / 16 < largest < 448  # a margin of 4 and up to 2 by rounding to a power of two


def test_scales_and_type_go_together(loaded: LoadedModel) -> None:
    spec = PagedModel(loaded, CPU, fp8=True).kv_cache.spec
    with pytest.raises(ValueError, match=r"a KV cache in torch\.float8_e4m3fn lacks scales"):
        KVCache(spec, 1, CPU)


def test_the_native_cpu_backend_refuses_it(tmp_path: Path) -> None:
    save(make_reference("llama_tied"), tmp_path)
    config = WorkerConfig(model=str(tmp_path), device="cpu", backend="cpu", kv_cache_dtype="fp8_e4m3")
    with pytest.raises(
        ConfigError, match="--kv-cache-dtype fp8_e4m3 is not served by --backend cpu, whose KV cache has"
    ):
        load_worker(config)


def test_a_worker_serves_it_with_a_quarter_of_float32s_bytes(tmp_path: Path) -> None:
    save(make_reference("llama_tied"), tmp_path)
    config = WorkerConfig(
        model=str(tmp_path),
        device="cpu",
        backend="torch",
        dtype="float32",
        kv_cache_dtype="fp8_e4m3",
        num_gpu_blocks_override=4,
    )
    full = load_worker(dataclasses.replace(config, kv_cache_dtype="auto")).capacity
    capacity = load_worker(config).capacity
    assert 4 * capacity.bytes_per_block == full.bytes_per_block
    assert capacity.config_digest != full.config_digest  # its KV is not the other's
