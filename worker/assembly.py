"""From a configuration to a worker that can run: checkpoint, backend, model, KV cache, and a first step."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass

import structlog
import torch

from worker.backend.protocol import Backend
from worker.backend.select import make_backend
from worker.config import ConfigError, WorkerConfig
from worker.device_io import DeviceIO, make_io
from worker.dummy_step import DummyStep
from worker.grammar import GrammarMatchers
from worker.kv_cache import KVCache, KVCacheSpec, KVScales
from worker.kv_scales import FP8, measure_kv_scales
from worker.loader.load import LoadedModel, choose_dtype, load_model, open_checkpoint
from worker.loader.resolve import GGUFFile, resolve_model
from worker.loader.tokenizer_source import tokenizer_source
from worker.memory import num_host_blocks, num_kv_blocks
from worker.profiling import MemoryGauge, largest_steps, profile_memory
from worker.runner import Runner
from worker.step import PROTOCOL_VERSION, Capacity

log = structlog.get_logger()

_USEFUL_SEQUENCES = 256
"""A KV cache sized by a fraction of memory holds at most this many sequences of the greatest length: beyond that, a
small model on a large machine would get millions of blocks that nobody fills."""


_STEP_TOKENS, _STEP_ROWS = 8192, 256
"""The largest step that a GPU keeps memory for where the flags do not say."""

_UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWorker:
    """A runner that has run, and what it can do."""

    runner: Runner
    capacity: Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """A loaded model and all that runners of it share. largest_step: its tokens and rows."""

    loaded: LoadedModel
    backend: Backend
    io: DeviceIO
    spec: KVCacheSpec
    scales: list[KVScales] | None
    max_model_len: int
    quantization: str
    largest_step: tuple[int, int]
    grammars: GrammarMatchers | None

    def runner(self, num_blocks: int, num_host_blocks: int = 0) -> Runner:
        """One with a KV cache of its own."""
        kv_cache = KVCache(
            self.spec,
            num_blocks,
            self.io.device,
            num_host_blocks,
            copy_blocks=self.backend.copy_blocks,
            scales=self.scales,
        )
        return Runner(self.loaded.model, kv_cache, self.io, self.grammars)

    def first_steps(self) -> list[DummyStep]:
        """A decode row and a short prompt."""
        prompt = max(1, min(self.spec.block_size, self.max_model_len - 1))
        return [DummyStep(num_tokens=num_tokens, num_rows=1) for num_tokens in (1, prompt)]


def load_worker(config: WorkerConfig) -> LoadedWorker:
    """Loads what the configuration names. Raises ConfigError, BackendError, ModelError or KVCacheMemoryError; the
    message of each is one line for the person who started the worker."""
    device = _device(config)
    gauge = MemoryGauge(device) if device.type == "cuda" else None
    parts = _load(config, device)
    spec, vocab_size = parts.spec, parts.loaded.config.vocab_size
    num_blocks = _num_blocks(config, parts, gauge)
    host_blocks = num_host_blocks(spec, device, num_blocks, config.swap_space)
    runner = parts.runner(num_blocks, host_blocks)
    log.info(
        "kv cache allocated",
        num_blocks=num_blocks,
        block_size=spec.block_size,
        dtype=dtype_name(spec.dtype),
        tokens=num_blocks * spec.block_size,
        bytes=num_blocks * spec.bytes_per_block,
        num_host_blocks=host_blocks,
        host_bytes=host_blocks * spec.bytes_per_block,
        max_model_len=parts.max_model_len,
    )
    # What is set up on first use, or cannot run here at all, shows before serving.
    for step in parts.first_steps():
        step.run(runner, spec.block_size, vocab_size)
    return LoadedWorker(runner=runner, capacity=_capacity(parts, num_blocks, host_blocks))


def _load(config: WorkerConfig, device: torch.device) -> _Parts:
    start = time.monotonic()
    files = resolve_model(config.model, config.revision, with_weights=config.load_format != "dummy")
    if config.load_format == "dummy" and isinstance(files, GGUFFile):
        raise ConfigError(f"--load-format is dummy, but --model is {config.model}; name a directory or a Hub id")
    checkpoint = open_checkpoint(files)
    max_model_len = _max_model_len(config.max_model_len, checkpoint.config.max_positions)
    dtype = torch.float32 if config.exact else choose_dtype(config.dtype, checkpoint.config)
    num_threads = config.threads or len(os.sched_getaffinity(0))
    backend = make_backend(config.backend, dtype, device, num_threads, config.exact, config.quantization)
    kv_cache_dtype = _kv_cache_dtype(config.kv_cache_dtype, dtype, backend)
    loaded = load_model(checkpoint, backend, dtype)
    log.info(
        "model loaded",
        model=config.model,
        architecture=loaded.config.architecture,
        dtype=dtype_name(dtype),
        quantization=config.quantization,
        weight_bytes=loaded.weight_bytes,
        exact=config.exact,
        seconds=round(time.monotonic() - start, 2),
        **backend.describe(),
    )
    spec = KVCacheSpec(
        num_layers=loaded.config.num_layers,
        num_kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        block_size=config.block_size,
        dtype=kv_cache_dtype,
    )
    io = make_io(device)
    tokenizer = tokenizer_source(files)
    default_tokens, default_rows = (_STEP_TOKENS, _STEP_ROWS) if device.type == "cuda" else (_UNLIMITED, _UNLIMITED)
    return _Parts(
        loaded=loaded,
        backend=backend,
        io=io,
        spec=spec,
        scales=measure_kv_scales(loaded, spec, io, max_model_len) if kv_cache_dtype == FP8 else None,
        max_model_len=max_model_len,
        quantization=config.quantization,
        largest_step=(config.max_num_batched_tokens or default_tokens, config.max_num_seqs or default_rows),
        grammars=None if tokenizer is None else GrammarMatchers(tokenizer, loaded.config.vocab_size),
    )


def dtype_name(dtype: torch.dtype) -> str:
    """As in flags and in the protocol: "float32", "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def _device(config: WorkerConfig) -> torch.device:
    if config.device != "auto":
        if config.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("--device is cuda, but PyTorch sees no GPU here")
        return torch.device(config.device)
    needs_cpu = config.exact or config.backend == "cpu"
    return torch.device("cuda" if torch.cuda.is_available() and not needs_cpu else "cpu")


def _max_model_len(asked: int | None, max_positions: int) -> int:
    if asked is not None and asked > max_positions:
        raise ConfigError(f"--max-model-len is {asked}, the model has positions for {max_positions} tokens")
    return asked or max_positions


def _kv_cache_dtype(name: str, dtype: torch.dtype, backend: Backend) -> torch.dtype:
    if name == "auto":
        return dtype
    if not backend.fp8_kv_cache:
        raise ConfigError(
            f"--kv-cache-dtype {name} is not served by --backend {backend.name}, whose KV cache has the weights' type; "
            "it needs --backend triton, or torch"
        )
    return FP8


def _num_blocks(config: WorkerConfig, parts: _Parts, gauge: MemoryGauge | None) -> int:
    spec, max_model_len = parts.spec, parts.max_model_len
    by_utilization = config.num_gpu_blocks_override is None and config.kv_cache_memory_bytes is None
    profile = None
    if gauge is not None and by_utilization:
        steps = largest_steps(*parts.largest_step, max_model_len)
        profile = profile_memory(gauge, steps, parts.runner, spec.block_size, parts.loaded.config.vocab_size)
        log.info("memory profiled", **asdict(profile))
    num_blocks = num_kv_blocks(
        spec,
        parts.io.device,
        num_gpu_blocks_override=config.num_gpu_blocks_override,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        gpu_memory_utilization=config.gpu_memory_utilization,
        profile=profile,
    )
    if by_utilization:
        num_blocks = min(num_blocks, _USEFUL_SEQUENCES * -(-max_model_len // spec.block_size))
    return num_blocks


def _capacity(parts: _Parts, num_blocks: int, host_blocks: int) -> Capacity:
    spec, loaded = parts.spec, parts.loaded
    # All that changes what a plan means, and nothing that does not: a worker that restarts alike gets the same digest.
    meaning = {
        "protocol_version": PROTOCOL_VERSION,
        "architecture": loaded.config.architecture,
        "weights": loaded.weights_digest.hex(),
        "dtype": dtype_name(loaded.dtype),
        "quantization": parts.quantization,
        "kv_cache_dtype": dtype_name(spec.dtype),
        "block_size": spec.block_size,
        "rank": 0,
        "world_size": 1,
    }
    max_num_batched_tokens, max_num_seqs = parts.largest_step
    return Capacity(
        num_layers=spec.num_layers,
        block_size=spec.block_size,
        window=loaded.config.sliding_window,
        bytes_per_block=spec.bytes_per_block,
        num_device_blocks=num_blocks,
        num_host_blocks=host_blocks,
        logits_width=loaded.config.vocab_size,
        max_model_len=parts.max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        architecture=loaded.config.architecture,
        dtype=dtype_name(loaded.dtype),
        tokenizer_digest=loaded.tokenizer_digest,
        weights_digest=loaded.weights_digest,
        config_digest=hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).digest(),
    )
