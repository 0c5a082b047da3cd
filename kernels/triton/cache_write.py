"""The write of some heads of one token to their slot of the paged KV cache, for the kernels that do it."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton import float8


@triton.jit
def store_heads(
    cache_ptr,  # [N, G, B, D]
    slot,  # block * B + offset; nothing is written if it is negative
    heads,  # [heads of the tile]
    dims,  # [columns of the tile]
    x,  # [heads, columns] in the model's type
    scale_ptr,  # [G] float32, or None: then x goes as it is
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Writes columns `dims`, which lie in 0..COLUMNS - 1 but for padding, of the heads that exist."""
    if scale_ptr is not None:
        scales = tl.load(scale_ptr + heads, mask=heads < KV_HEADS, other=1.0)
        x = float8.encode(x.to(tl.float32) / scales[:, None])
    rows = (slot // BLOCK_SIZE * KV_HEADS + heads) * BLOCK_SIZE + slot % BLOCK_SIZE
    mask = (heads < tl.where(slot >= 0, KV_HEADS, 0))[:, None] & (dims < COLUMNS)[None, :]
    tl.store(cache_ptr + rows[:, None] * HEAD_DIM + dims[None, :], x, mask=mask)
