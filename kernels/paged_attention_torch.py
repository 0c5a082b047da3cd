"""Causal attention over a paged KV cache in batched torch, for any device and dtype.

One `index_select` gathers the padded block tables of a whole group of sequences, then one masked
`scaled_dot_product_attention` serves it, or the same step by step where scores are capped. Sequences are split into
two groups, those that decode (one query) and the others, so that a long prompt does not pad every decoding row to its
number of queries. Bytes moved: the gathered KV of each group, padded to its longest sequence, once written and once
read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def _gather(
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    readable: torch.Tensor,
    scale: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """cache [N, G, B, D], block_tables [S, M] int64, readable [S, M * B], scale [G] or None -> the values in dtype,
    [S, G, M * B, D], zeros where unreadable.

    Unreadable slots may hold anything, NaN included, and a weight of zero times NaN would still be NaN.
    """
    sequences, max_blocks = block_tables.shape
    _, kv_heads, block_size, head_dim = cache.shape
    stored = cache if scale is None else cache.view(torch.uint8)  # torch gathers no float8
    blocks = stored.index_select(0, block_tables.reshape(-1)).view(
        sequences, max_blocks, kv_heads, block_size, head_dim
    )
    tokens = blocks.transpose(1, 2).reshape(sequences, kv_heads, max_blocks * block_size, head_dim)
    if scale is not None:
        tokens = tokens.view(cache.dtype).float() * scale[:, None, None]
    return tokens.to(dtype).masked_fill(~readable[:, None, :, None], 0.0)


def _attend_group(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> torch.Tensor:
    """q [S, Q, H, D] padded at the end of each row; query_lens, seq_lens [S]; block_tables [S, M] -> [S, Q, H, D]."""
    num_blocks, _, block_size, _ = key_cache.shape
    key_pos = torch.arange(block_tables.shape[1] * block_size, device=q.device)[None, :]  # [1, L]
    first_query = (seq_lens - query_lens)[:, None]  # [S, 1]
    query_pos = first_query + torch.arange(q.shape[1], device=q.device)[None, :]  # [S, Q]
    readable = key_pos < seq_lens[:, None]  # [S, L]
    mask = key_pos[:, None, :] <= query_pos[:, :, None]  # [S, Q, L]
    if window:
        readable &= key_pos > first_query - window
        mask &= key_pos[:, None, :] > query_pos[:, :, None] - window
    # Padding queries come after a row's end and are dropped; letting them see every key keeps their softmax defined.
    mask |= (query_pos >= seq_lens[:, None])[:, :, None]
    tables = block_tables.long().clamp(0, num_blocks - 1)  # entries past a sequence's end are undefined
    keys = _gather(key_cache, tables, readable, k_scale, q.dtype)
    values = _gather(value_cache, tables, readable, v_scale, q.dtype)
    if soft_cap:
        return _capped(q, keys, values, mask, scale, soft_cap)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, attn_mask=mask[:, None], scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2)


def _capped(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float, soft_cap: float
) -> torch.Tensor:
    """q [S, Q, H, D], keys and values [S, G, L, D], mask [S, Q, L] -> [S, Q, H, D]. SDPA has no place for the cap."""
    grouped = q.unflatten(2, (keys.shape[1], -1))  # [S, Q, G, H / G, D]
    scores = torch.einsum("sqghd,sgld->sghql", grouped, keys).float() * scale
    scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = torch.softmax(scores.masked_fill(~mask[:, None, None], float("-inf")), dim=-1).to(values.dtype)
    return torch.einsum("sghql,sgld->sqghd", weights, values).flatten(2, 3)


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
    """The same contract as `paged_attention_ref.paged_attention`, of the caches times k_scale and v_scale [G] if given.
    On a GPU each call waits once for the lengths."""
    block_size = key_cache.shape[2]
    out = torch.empty_like(q)
    starts = query_start_loc[:-1].long()
    query_lens = query_start_loc[1:].long() - starts
    lengths = torch.stack((query_lens, seq_lens.long())).cpu()
    for chosen in (lengths[0] == 1, lengths[0] > 1):
        if not bool(chosen.any()):
            continue
        max_queries, max_tokens = (int(row[chosen].max()) for row in lengths)
        group = chosen.nonzero().flatten().to(q.device)
        offsets = torch.arange(max_queries, device=q.device)[None, :]  # [1, Q]
        real = offsets < query_lens[group][:, None]  # [S', Q]
        rows = (starts[group][:, None] + offsets).clamp(max=q.shape[0] - 1)  # [S', Q] places in 0..T-1
        attended = _attend_group(
            q[rows],
            key_cache,
            value_cache,
            query_lens[group],
            seq_lens[group].long(),
            block_tables[group, : -(-max_tokens // block_size)],
            scale,
            window,
            soft_cap,
            k_scale,
            v_scale,
        )
        out[rows[real]] = attended[real]
    return out
