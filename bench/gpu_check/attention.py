"""Paged attention: decode against the bandwidth of a copy, prefill against torch's SDPA and a matrix product."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu_check.paged import Paged, make_paged
from bench.gpu_check.setting import GIGA, TERA, Setting
from bench.gpu_check.sizes import Sizes
from kernels.paged_attention_torch import paged_attention as reference
from kernels.triton.paged_attention import paged_attention

Attention = Callable[..., torch.Tensor]

_CACHE_BYTES = 1 << 30
"""Of keys and values that take turns: many times the GPU's cache."""

_SDPA_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)

_TOLERANCE = 2e-2  # relative, of bf16
_SCALE = 2.0**-5  # of the fp8 cache: its largest number is 448, normal ones seldom pass 5


def run(setting: Setting) -> None:
    """The part."""
    most = max(setting.sizes.streams)
    setting.measure(
        {_name(setting, streams): functools.partial(_decode, setting, streams) for streams in setting.sizes.streams}
        | {_name(setting, most, float8=True): functools.partial(_decode, setting, most, float8=True)}
        | {"prefill": functools.partial(_prefill, setting)}
    )


def _name(setting: Setting, streams: int, *, float8: bool = False) -> str:
    return f"decode, {streams} x {setting.sizes.context}" + (", fp8" if float8 else "")


def _decode(setting: Setting, streams: int, *, float8: bool = False) -> None:
    sizes, model = setting.sizes, setting.sizes.model
    paged = make_paged(setting, streams, sizes.context, _CACHE_BYTES if setting.device.type == "cuda" else 1)
    q = setting.random(streams, model.heads, model.head_dim)
    starts = torch.arange(streams + 1, dtype=torch.int32, device=setting.device)
    caches, scales = (paged.key_cache, paged.value_cache), {}
    if float8:
        scale = torch.full((model.kv_heads,), _SCALE, device=setting.device)
        caches = tuple((cache.float() / _SCALE).to(torch.float8_e4m3fn) for cache in caches)
        scales = {"k_scale": scale, "v_scale": scale}

    def attend(attention: Attention, few: int, table: torch.Tensor) -> torch.Tensor:
        """The first few of the sequences."""
        lens, scale = paged.seq_lens[:few], model.head_dim**-0.5
        return attention(q[:few], *caches, starts[: few + 1], lens, table[:few], scale, 0, **scales)

    name = _name(setting, streams, float8=float8)
    first = paged.block_tables[0]
    few = min(2, streams)
    _judge(name, attend(paged_attention, streams, first)[:few], attend(reference, few, first))
    seconds = setting.timer.median_of_graph(
        *(functools.partial(attend, paged_attention, streams, table) for table in paged.block_tables)
    )
    num_bytes = paged.bytes_per_set * caches[0].itemsize // setting.dtype.itemsize + 2 * q.nbytes
    rate, note = num_bytes / seconds / GIGA, f"{1e6 * seconds:.1f} us"
    setting.rows.compare(name, rate, "GB/s", "copy", setting.copy_rate / GIGA, note=note)


def prefill_operations(sizes: Sizes) -> float:
    """Of a causal prompt's attention."""
    return 4 * sizes.model.heads * sizes.model.head_dim * sizes.prefill * (sizes.prefill + 1) / 2


def prefill_work(setting: Setting, q: torch.Tensor, paged: Paged) -> Callable[[], torch.Tensor]:
    """q [T, H, D] of one sequence of `paged`, all of it prompt."""
    starts = torch.tensor([0, q.shape[0]], dtype=torch.int32, device=setting.device)
    table, scale = paged.block_tables[0], q.shape[-1] ** -0.5
    return lambda: paged_attention(q, paged.key_cache, paged.value_cache, starts, paged.seq_lens, table, scale, 0)


def _prefill(setting: Setting) -> None:
    sizes, model = setting.sizes, setting.sizes.model
    tokens, scale = sizes.prefill, model.head_dim**-0.5
    paged = make_paged(setting, 1, tokens, 1)
    q = setting.random(tokens, model.heads, model.head_dim)
    ours = prefill_work(setting, q, paged)
    dense = [
        cache[paged.block_tables[0][0].long()].transpose(1, 2).flatten(0, 1)[:tokens].transpose(0, 1)[None].contiguous()
        for cache in (paged.key_cache, paged.value_cache)
    ]  # [1, G, T, D]
    queries = q.transpose(0, 1)[None].contiguous()
    repeated = [cache.repeat_interleave(model.heads // model.kv_heads, dim=1) for cache in dense]

    def sdpa() -> torch.Tensor:
        return F.scaled_dot_product_attention(queries, *dense, is_causal=True, scale=scale, enable_gqa=True)

    def sdpa_of_repeated() -> torch.Tensor:
        return F.scaled_dot_product_attention(queries, *repeated, is_causal=True, scale=scale)

    name = f"prefill, 1 x {tokens}"
    _judge(name, ours(), sdpa()[0].transpose(0, 1))
    operations = prefill_operations(sizes)
    rate = operations / setting.timer.median(ours) / TERA
    # Not every one of torch's kernels knows grouped heads; the fastest way counts, whichever torch would choose.
    peers: dict[str, float] = {}
    for backend, work in itertools.product((None, *_SDPA_BACKENDS), (sdpa, sdpa_of_repeated)):
        peer_name = "chosen by torch" if backend is None else backend.name
        # A kernel that does not serve this raises.
        with contextlib.suppress(RuntimeError), sdpa_kernel(backend) if backend else contextlib.nullcontext():
            peers[peer_name] = max(peers.get(peer_name, 0.0), operations / setting.timer.median(work) / TERA)
    note = ", ".join(f"{peer} {value:.3g}" for peer, value in peers.items())
    setting.rows.compare(name, rate, "TFLOP/s", "torch SDPA", max(peers.values()), note=note)
    setting.rows.compare(name, rate, "TFLOP/s", f"matrix product {sizes.matmul}^3", setting.matmul_rate / TERA)


def _judge(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The time of a wrong result is worth nothing."""
    error = float((actual.float() - expected.float()).norm() / expected.float().norm())
    if not error < _TOLERANCE:
        raise ArithmeticError(f"WRONG: {name}: relative error {error:.3g}")
