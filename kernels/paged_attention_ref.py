"""Reference of causal attention over a paged KV cache: one sequence after the other, plain softmax, float32 inside.

It is the oracle of every attention kernel, so it favours being obviously right over anything else.
"""

from __future__ import annotations

import torch


def gather(
    cache: torch.Tensor, block_table: torch.Tensor, length: int, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """The first `length` tokens of one sequence. cache [N, G, B, D], block_table [max blocks], scale [G] of a float8
    cache -> [length, G, D]."""
    block_size = cache.shape[2]
    blocks = block_table[: -(-length // block_size)].long()  # what follows in the table is undefined
    tokens = cache.view(torch.uint8)[blocks].view(cache.dtype) if scale is not None else cache[blocks]
    tokens = tokens.float().transpose(1, 2).flatten(0, 1)[:length]
    return tokens if scale is None else tokens * scale[:, None]


def visible(query_len: int, seq_len: int, window: int, device: torch.device) -> torch.Tensor:
    """[query_len, seq_len] booleans: which keys each of a sequence's last queries may see."""
    query_pos = torch.arange(seq_len - query_len, seq_len, device=device).unsqueeze(1)
    key_pos = torch.arange(seq_len, device=device).unsqueeze(0)
    mask = key_pos <= query_pos
    if window:
        mask = mask & (key_pos > query_pos - window)
    return mask


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
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """q [T, H, D], caches [N, G, B, D], query_start_loc [S + 1], seq_lens [S], block_tables [S, M] -> [T, H, D].

    The queries of a sequence are its last tokens; `window` w > 0 lets each see itself and the w - 1 positions before.
    soft_cap c > 0 makes a score s, after `scale`, c * tanh(s / c). k_scale, v_scale [G] float32 are given with caches
    in float8_e4m3fn, where a stored value times its head's scale is the real one.
    """
    out = torch.empty_like(q)
    group = q.shape[1] // key_cache.shape[1]
    starts = query_start_loc.tolist()
    for index, seq_len in enumerate(seq_lens.tolist()):
        start, end = starts[index], starts[index + 1]
        if start == end:
            continue
        keys = gather(key_cache, block_tables[index], seq_len, k_scale).repeat_interleave(group, dim=1)  # [L, H, D]
        values = gather(value_cache, block_tables[index], seq_len, v_scale).repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[start:end].float(), keys) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        mask = visible(end - start, seq_len, window, q.device)
        weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        # A windowed sequence may have given its oldest blocks back: what is there now must not reach 0 * NaN.
        values = values.masked_fill(~mask.any(dim=0)[:, None, None], 0.0)
        out[start:end] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out
