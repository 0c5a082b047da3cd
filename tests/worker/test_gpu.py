"""What only a CUDA device shows: page-locked copies, the sampler's kernels, a model through the Triton backend there.

`make gpu-check` runs these; elsewhere they are skipped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.worker.models.checkpoints import make_reference, reference_logits, save
from tests.worker.models.paged import PagedModel
from tests.worker.models.test_decoder import PROMPTS
from tests.worker.sampling import mixed_rows, rules_of
from tests.worker.test_device_io import COLUMNS
from worker.backend.select import make_backend
from worker.device_io import DeviceIO, HostIO, StagedIO
from worker.device_sampler import DeviceSampler, Sampler
from worker.kv_cache import KVCache, KVCacheSpec
from worker.loader.load import LoadedModel, load_model, open_checkpoint
from worker.loader.resolve import resolve_model
from worker.logit_adjuster import Adjustments
from worker.profiling import MemoryGauge
from worker.sampler import Sampled, sample

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
GPU = torch.device("cuda")


def test_staged_columns_arrive_and_come_back() -> None:
    io = StagedIO(GPU)
    arrived = io.upload(COLUMNS)
    for name, column in COLUMNS.items():
        assert np.array_equal(arrived[name].cpu().numpy(), column), name
    back = io.download([arrived["table"], arrived["fractions"]])
    assert np.array_equal(back[0], COLUMNS["table"]) and np.array_equal(back[1], COLUMNS["fractions"])


@pytest.mark.parametrize("width", [97, 128_256])
def test_the_gpu_samples_what_the_host_does(width: int) -> None:
    logits, rows = mixed_rows(width)
    host, device = sample(logits, rows), DeviceSampler(StagedIO(GPU))(logits.to(GPU), rows)
    assert device.tokens.tolist() == host.tokens.tolist()
    assert device.top_tokens.tolist() == host.top_tokens.tolist()
    assert device.logprobs == pytest.approx(host.logprobs, abs=1e-4)


def test_the_gpu_keeps_the_rules_that_the_host_does() -> None:
    width = 5_000
    logits, rows = mixed_rows(width)
    rules = [
        rules_of(width=width, logit_bias={7: 4.0}, min_tokens=3, masked_token_ids=[1, 2]),
        rules_of(width=width, output=[5, 6, 6], frequency_penalty=0.5, presence_penalty=0.5, repetition_penalty=1.3),
        rules_of(width=width, allowed_token_ids=list(range(0, width, 7)), bad_words=((14,),)),
    ]
    places = np.array([1, 4, 6], np.int64)

    def draw(sampler: Sampler, io: DeviceIO, logits: torch.Tensor) -> Sampled:
        adjustments = Adjustments(places, rules, places)
        return sampler(logits, rows, adjustments.apply(logits, io))

    host = draw(sample, HostIO(), logits.clone())
    device = draw(DeviceSampler(StagedIO(GPU)), StagedIO(GPU), logits.to(GPU))
    assert device.tokens.tolist() == host.tokens.tolist()
    assert device.top_tokens.tolist() == host.top_tokens.tolist()
    assert device.logprobs == pytest.approx(host.logprobs, abs=1e-4)


def test_a_step_waits_for_the_gpu_once() -> None:
    logits, rows = mixed_rows(500)
    sampler, logits = DeviceSampler(StagedIO(GPU)), logits.to(GPU)
    sampler(logits, rows)
    torch.cuda.set_sync_debug_mode("error")  # of all waits but those for an event, which is how a download waits
    try:
        sampler(logits, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("backend_name", ["torch", "triton"])
def test_blocks_come_back_from_page_locked_memory(backend_name: str) -> None:
    spec = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16)
    backend = make_backend(backend_name, torch.bfloat16, GPU, 1, False)
    cache = KVCache(spec, 6, GPU, 4, copy_blocks=backend.copy_blocks)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    before = torch.stack([*cache.keys, *cache.values]).clone()  # [2 L, N, G, B, D]
    cache.swap_out(*blocks([5, 0], [2, 3]))
    for tensor in (*cache.keys, *cache.values):
        tensor[[0, 5]] = torch.nan
    cache.swap_in(*blocks([3, 2], [1, 0]))
    cache.copy_on_write(*blocks([1, 2], [4, 5]))
    after = torch.stack([*cache.keys, *cache.values])
    assert torch.equal(after, before[:, [5, 0, 2, 3, 0, 2]])


def blocks(*columns: list[int]) -> list[np.ndarray]:
    return [np.array(column, np.int32) for column in columns]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save(make_reference("llama_llama3"), path)
    return path


def load(directory: Path, dtype: torch.dtype) -> LoadedModel:
    backend = make_backend("triton", dtype, GPU, 1, False)
    return load_model(open_checkpoint(resolve_model(str(directory))), backend, dtype)


@pytest.mark.parametrize(
    ("dtype", "fp8", "tolerance"),
    [(torch.float32, False, 1e-3), (torch.bfloat16, False, 0.02), (torch.bfloat16, True, 0.1)],
)
def test_a_model_equals_transformers(directory: Path, dtype: torch.dtype, fp8: bool, tolerance: float) -> None:
    reference = make_reference("llama_llama3")
    paged = PagedModel(load(directory, dtype), GPU, fp8=fp8)
    whole = paged.step(PROMPTS)
    chunked = paged.run("chunked", PROMPTS["long"], [1, 16, 31, 41, 1])
    for name, logits in (*whole.items(), ("long", chunked)):
        expected = reference_logits(reference, PROMPTS[name])
        error = (logits.cpu() - expected).abs().mean()
        assert error < tolerance * expected.std(), (name, error)


def test_the_forward_pass_never_waits_for_the_gpu(directory: Path) -> None:
    paged = PagedModel(load(directory, torch.bfloat16), GPU)
    model, cache = paged.loaded.model, paged.kv_cache
    paged.step({"it": PROMPTS["long"]})
    batch = paged.batch({"it": [5], "other": PROMPTS["short"]})
    model.forward(batch, cache)
    torch.cuda.set_sync_debug_mode("error")
    try:
        model.forward(batch, cache)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_gauge_reads_the_peak_of_the_work() -> None:
    gauge = MemoryGauge(GPU)
    held = torch.empty(64 << 20, dtype=torch.uint8, device=GPU)
    peak = gauge.peak_of(lambda: torch.empty(256 << 20, dtype=torch.uint8, device=GPU))
    assert 256 << 20 <= peak < 320 << 20
    profile = gauge.profile(peak, (1, 1))
    assert 0 < profile.free < profile.free_at_start <= profile.total
    del held
