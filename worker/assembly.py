"""From a configuration to a worker that can run: checkpoint, backend, model, KV cache, and a first step."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass

import numpy as np
import structlog
import torch

from worker.backend.select import make_backend
from worker.config import ConfigError, WorkerConfig
from worker.kv_cache import KVCache, KVCacheSpec
from worker.loader.load import LoadedModel, choose_dtype, load_model, open_checkpoint
from worker.loader.resolve import resolve_model
from worker.memory import num_host_blocks, num_kv_blocks
from worker.runner import Runner
from worker.sequence_table import SequenceTable
from worker.step import NO_COPIES, PROTOCOL_VERSION, Admission, Capacity, Limits, Sampling, StepPlan, no_ints

log = structlog.get_logger()

_USEFUL_SEQUENCES = 256
"""A KV cache sized by a fraction of memory holds at most this many sequences of the greatest length: beyond that, a
small model on a large machine would get millions of blocks that nobody fills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWorker:
    """A runner that has run, and what it can do."""

    runner: Runner
    capacity: Capacity


def load_worker(config: WorkerConfig) -> LoadedWorker:
    """Loads what the configuration names. Raises ConfigError, ModelError or KVCacheMemoryError; the message of each is
    one line for the person who started the worker."""
    start = time.monotonic()
    device = _device(config)
    checkpoint = open_checkpoint(resolve_model(config.model, config.revision))
    max_model_len = _max_model_len(config.max_model_len, checkpoint.config.max_positions)
    dtype = torch.float32 if config.exact else choose_dtype(config.dtype, checkpoint.config)
    num_threads = config.threads or len(os.sched_getaffinity(0))
    backend = make_backend(config.backend, dtype, device, num_threads, config.exact)
    loaded = load_model(checkpoint, backend, dtype)
    log.info(
        "model loaded",
        model=config.model,
        architecture=loaded.config.architecture,
        dtype=dtype_name(dtype),
        exact=config.exact,
        seconds=round(time.monotonic() - start, 2),
        **backend.describe(),
    )
    spec = KVCacheSpec(
        num_layers=loaded.config.num_layers,
        num_kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        block_size=config.block_size,
        dtype=dtype,
    )
    num_blocks = _num_blocks(config, spec, device, max_model_len)
    host_blocks = num_host_blocks(spec, device, num_blocks, config.swap_space)
    kv_cache = KVCache(spec, num_blocks, device, host_blocks)
    log.info(
        "kv cache allocated",
        num_blocks=num_blocks,
        block_size=spec.block_size,
        tokens=num_blocks * spec.block_size,
        bytes=num_blocks * spec.bytes_per_block,
        num_host_blocks=host_blocks,
        host_bytes=host_blocks * spec.bytes_per_block,
        max_model_len=max_model_len,
    )
    capacity = _capacity(loaded, kv_cache, max_model_len)
    runner = Runner(loaded.model, kv_cache, device)
    _run_first_step(runner, capacity)
    return LoadedWorker(runner=runner, capacity=capacity)


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


def _num_blocks(config: WorkerConfig, spec: KVCacheSpec, device: torch.device, max_model_len: int) -> int:
    num_blocks = num_kv_blocks(
        spec,
        device,
        num_gpu_blocks_override=config.num_gpu_blocks_override,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        gpu_memory_utilization=config.gpu_memory_utilization,
    )
    if config.num_gpu_blocks_override is None and config.kv_cache_memory_bytes is None:
        num_blocks = min(num_blocks, _USEFUL_SEQUENCES * -(-max_model_len // spec.block_size))
    return num_blocks


def _capacity(loaded: LoadedModel, kv_cache: KVCache, max_model_len: int) -> Capacity:
    spec = kv_cache.spec
    # All that changes what a plan means, and nothing that does not: a worker that restarts alike gets the same digest.
    meaning = {
        "protocol_version": PROTOCOL_VERSION,
        "architecture": loaded.config.architecture,
        "weights": loaded.weights_digest.hex(),
        "dtype": dtype_name(loaded.dtype),
        "block_size": spec.block_size,
        "rank": 0,
        "world_size": 1,
    }
    return Capacity(
        num_layers=spec.num_layers,
        block_size=spec.block_size,
        window=loaded.config.sliding_window,
        bytes_per_block=spec.bytes_per_block,
        num_device_blocks=kv_cache.num_blocks,
        num_host_blocks=kv_cache.num_host_blocks,
        logits_width=loaded.config.vocab_size,
        max_model_len=max_model_len,
        architecture=loaded.config.architecture,
        dtype=dtype_name(loaded.dtype),
        tokenizer_digest=loaded.tokenizer_digest,
        weights_digest=loaded.weights_digest,
        config_digest=hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).digest(),
    )


def _run_first_step(runner: Runner, capacity: Capacity) -> None:
    """One token through everything: what is set up on first use, or cannot run here at all, shows before serving."""
    limits = Limits(
        num_rows=1,
        num_device_blocks=capacity.num_device_blocks,
        num_host_blocks=0,
        block_size=capacity.block_size,
        logits_width=capacity.logits_width,
        max_model_len=2,
        max_num_batched_tokens=1,
    )
    sequence = Admission(
        sequence_id=0,
        row=0,
        num_prompt_tokens=1,
        token_ids=np.zeros(1, np.int32),
        blocks=np.zeros(1, np.int32),
        num_computed_tokens=0,
        sampling=Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, num_logprobs=None),
        seed=0,
        output_index=0,
    )
    plan = StepPlan(
        step_id=0,
        released_rows=no_ints(),
        swap_out=NO_COPIES,
        swap_in=NO_COPIES,
        copy_on_write=NO_COPIES,
        admissions=(sequence,),
        edit_rows=no_ints(),
        edit_indices=no_ints(),
        edit_blocks=no_ints(),
        rows=np.zeros(1, np.int32),
        num_tokens=np.ones(1, np.int32),
        max_samples=np.ones(1, np.int32),
    )
    runner.execute(SequenceTable(limits), plan)
