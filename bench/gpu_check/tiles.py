"""Other launch parameters than those of `kernels.triton.attention_tiles`, for whoever chooses them next: nothing else
shows on a GPU whether the reasons given there hold."""

from __future__ import annotations

import functools
from unittest import mock

import torch

from bench.gpu_check.attention import prefill_operations, prefill_work
from bench.gpu_check.paged import make_paged
from bench.gpu_check.setting import GIGA, TERA, Setting
from kernels.triton.attention_tiles import Tile
from kernels.triton.paged_attention import paged_attention

_PREFILL = (
    Tile(128, 64, 8, 3, ahead=True),
    Tile(128, 128, 8, 2),
    Tile(128, 64, 8, 3),
    Tile(64, 64, 4, 2, ahead=True),
)
_DECODE = (Tile(16, 64, 4, 3), Tile(16, 64, 4, 2), Tile(16, 128, 4, 2), Tile(16, 128, 8, 3), Tile(16, 32, 4, 4))
_LAUNCHER = "kernels.triton.paged_attention"


def run(setting: Setting) -> None:
    """The part."""
    prefill, decode = (_PREFILL, _DECODE) if setting.device.type == "cuda" else (_PREFILL[:1], _DECODE[:1])
    setting.measure(
        {_name("prefill", tile): functools.partial(_prefill, setting, tile) for tile in prefill}
        | {_name("decode", tile): functools.partial(_decode, setting, tile) for tile in decode}
    )


def _name(op: str, tile: Tile) -> str:
    warps = f"{tile.num_warps} warps, {tile.num_stages} stages"
    return f"{op}, {tile.block_m} x {tile.block_n}, {warps}" + (", ahead" if tile.ahead else "")


def _prefill(setting: Setting, tile: Tile) -> None:
    sizes = setting.sizes
    q = setting.random(sizes.prefill, sizes.model.heads, sizes.model.head_dim)
    work = prefill_work(setting, q, make_paged(setting, 1, sizes.prefill, 1))
    with mock.patch(f"{_LAUNCHER}.prefill_tile", return_value=tile):
        seconds = setting.timer.median(work)
    setting.rows.add(_name("prefill", tile), prefill_operations(sizes) / seconds / TERA, "TFLOP/s")


def _decode(setting: Setting, tile: Tile) -> None:
    """At the most streams."""
    sizes, model, streams = setting.sizes, setting.sizes.model, max(setting.sizes.streams)
    paged = make_paged(setting, streams, sizes.context, 1)
    q = setting.random(streams, model.heads, model.head_dim)
    starts = torch.arange(streams + 1, dtype=torch.int32, device=setting.device)
    caches, table, scale = (paged.key_cache, paged.value_cache), paged.block_tables[0], model.head_dim**-0.5
    with mock.patch(f"{_LAUNCHER}.decode_tile", return_value=tile):
        seconds = setting.timer.median_of_graph(
            lambda: paged_attention(q, *caches, starts, paged.seq_lens, table, scale, 0)
        )
    setting.rows.add(_name("decode", tile), paged.bytes_per_set / seconds / GIGA, "GB/s")
