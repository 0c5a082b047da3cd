"""Causal attention over a paged KV cache (interface; the kernels follow)."""

from __future__ import annotations

import torch


def paged_attention(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    window: int,
    soft_cap: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """q [T, H, D] with dense heads (stride D), any distance between tokens; key_cache and value_cache [N, G, B, D]
    contiguous; query_start_loc [S + 1], seq_lens [S] int32, block_tables [S, max blocks] int32 with contiguous rows
    -> [T, H, D] contiguous.

    window: 0 is none. soft_cap c > 0: scores become c * tanh(scores / c), after `scale`; 0 is none. k_scale, v_scale
    [G] float32: both given with caches in float8_e4m3fn, where a stored value times its head's scale is the real one;
    both None otherwise. No host sync: nothing about the step is read back. Whether decode kernels run is chosen from
    shapes alone (T and S), the number of KV splits from S, G and the width of block_tables: pass tables no wider than
    the step's longest sequence needs.
    """
    raise NotImplementedError
