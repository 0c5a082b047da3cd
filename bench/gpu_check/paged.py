"""Sequences in a paged KV cache of one layer, their blocks shuffled, for the attention benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench.gpu_check.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged:
    """num_sets times `streams` sequences of equal length in one cache. Each set has a block table of its own, so that
    sets can take turns and none finds its keys in the GPU's cache."""

    key_cache: torch.Tensor  # [N, G, B, D]
    value_cache: torch.Tensor
    block_tables: list[torch.Tensor]  # per set [streams, M]
    seq_lens: torch.Tensor  # [streams]
    bytes_per_set: int


def make_paged(setting: Setting, streams: int, length: int, at_least_bytes: int) -> Paged:
    """Random keys and values of as many sets as make up at_least_bytes."""
    model, block_size = setting.sizes.model, setting.sizes.block_size
    blocks = -(-length // block_size)
    bytes_per_set = 2 * streams * length * model.kv_heads * model.head_dim * setting.dtype.itemsize
    num_sets = -(-at_least_bytes // bytes_per_set)
    num_blocks = num_sets * streams * blocks
    shape = (num_blocks, model.kv_heads, block_size, model.head_dim)
    order = torch.randperm(num_blocks, device=setting.device, dtype=torch.int32)
    return Paged(
        key_cache=setting.random(*shape),
        value_cache=setting.random(*shape),
        block_tables=list(order.view(num_sets, streams, blocks).unbind(0)),
        seq_lens=torch.full((streams,), length, dtype=torch.int32, device=setting.device),
        bytes_per_set=bytes_per_set,
    )
