"""The elementwise ops and block copies: bytes per second against a copy's."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch

from bench.gpu_check.setting import GIGA, Setting
from bench.gpu_check.timing import Work
from kernels.triton.rms_norm import add_rms_norm
from kernels.triton.rope_and_cache import rope_and_cache
from kernels.triton.silu_and_mul import silu_and_mul
from worker.backend.triton_backend import TritonBackend
from worker.kv_cache import KVCache, KVCacheSpec
from worker.models.rope import cos_sin_table, make_rope

_EPS = 1e-5
_COPIES = 256
_IN_GRAPH = 8


def run(setting: Setting) -> None:
    """The part."""
    ops = {"add_rms_norm": _add_rms_norm, "rope_and_cache": _rope_and_cache, "silu_and_mul": _silu_and_mul}
    setting.measure(
        {name: functools.partial(_elementwise, setting, name, make) for name, make in ops.items()}
        | {"block copies": functools.partial(_copies, setting)}
    )


def _elementwise(setting: Setting, name: str, make: Callable[[Setting], tuple[Work, int]]) -> None:
    """make: gives the op's work and the bytes that it moves. Several in a graph: an op takes some 60 us, hardly more
    than its launch."""
    work, num_bytes = make(setting)
    _add(setting, name, num_bytes / setting.timer.median_of_graph(*[work] * _IN_GRAPH))


def _add_rms_norm(setting: Setting) -> tuple[Work, int]:
    rows, hidden = setting.sizes.rows, setting.sizes.model.hidden
    x, residual, weight = setting.random(rows, hidden), setting.random(rows, hidden), setting.random(hidden)
    return lambda: add_rms_norm(x, residual, weight, _EPS), 4 * x.nbytes


def _silu_and_mul(setting: Setting) -> tuple[Work, int]:
    gate_up = setting.random(setting.sizes.rows, 2 * setting.sizes.model.intermediate)
    return lambda: silu_and_mul(gate_up), gate_up.nbytes * 3 // 2


def _rope_and_cache(setting: Setting) -> tuple[Work, int]:
    sizes, model = setting.sizes, setting.sizes.model
    rows, heads, kv_heads, head_dim = sizes.rows, model.heads, model.kv_heads, model.head_dim
    qkv = setting.random(rows, heads + 2 * kv_heads, head_dim)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    rope = make_rope({"rope_theta": 500000.0}, head_dim)
    cos_sin = cos_sin_table(rope, rows).to(setting.device)
    positions = torch.arange(rows, dtype=torch.int32, device=setting.device)
    blocks = -(-rows // sizes.block_size)
    caches = [torch.empty((blocks, kv_heads, sizes.block_size, head_dim), dtype=q.dtype, device=setting.device)] * 2
    caches[1] = torch.empty_like(caches[0])
    slots = torch.randperm(blocks * sizes.block_size, device=setting.device)[:rows]
    read_twice = 2 * q.nbytes + 2 * k.nbytes  # rotated in place
    written = k.nbytes + v.nbytes
    return (
        lambda: rope_and_cache(q, k, v, cos_sin, positions, caches[0], caches[1], slots),
        read_twice + v.nbytes + written + cos_sin.nbytes,
    )


def _copies(setting: Setting) -> None:
    """Through the worker's KV cache: copy-on-write within the device, swaps with page-locked host memory."""
    sizes, model = setting.sizes, setting.sizes.model
    count = _COPIES if setting.device.type == "cuda" else 2
    spec = KVCacheSpec(
        num_layers=model.layers,
        num_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        block_size=sizes.block_size,
        dtype=setting.dtype,
    )
    backend = TritonBackend(setting.dtype, setting.device)
    cache = KVCache(spec, 2 * count, setting.device, count, copy_blocks=backend.copy_blocks)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    order = np.random.default_rng(8).permutation(2 * count).astype(np.int32)
    sources, destinations, host = order[:count], order[count:], np.arange(count, dtype=np.int32)
    num_bytes = count * spec.bytes_per_block
    before = cache.keys[0][int(sources[0])].clone()

    _add(
        setting,
        f"copy_blocks, {count} of {spec.bytes_per_block} bytes",
        2 * num_bytes / setting.timer.median(lambda: cache.copy_on_write(sources, destinations)),
    )
    out = setting.timer.median(lambda: cache.swap_out(destinations, host))
    cache.keys[0][int(sources[0])].zero_()
    back = setting.timer.median(lambda: cache.swap_in(host, sources))
    intact = torch.equal(cache.keys[0][int(sources[0])], before)
    for name, seconds in (("swap out", out), ("swap in", back)):
        setting.rows.add(name, num_bytes / seconds / GIGA, "GB/s", peer="" if intact else "WRONG: not the same bytes")


def _add(setting: Setting, name: str, rate: float) -> None:
    setting.rows.compare(name, rate / GIGA, "GB/s", "copy", setting.copy_rate / GIGA)
