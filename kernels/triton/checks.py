"""Checks that the launchers share. They look at shapes, types and strides alone, never at values: those are on the GPU,
and reading one back would stop the pipeline. A step makes hundreds of launches, so each check is a few comparisons."""

from __future__ import annotations

from typing import NoReturn

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
FLOAT8 = torch.float8_e4m3fn


def reject(op: str, field: str, expected: str, got: torch.Tensor | None) -> NoReturn:
    """Raises the ValueError that names the op, the field, what it must be and what was given."""
    given = "None" if got is None else f"{list(got.shape)} in {got.dtype} with strides {got.stride()}"
    raise ValueError(f"{op}: {field} must be {expected}, got {given}")


def check_heads(op: str, field: str, x: torch.Tensor, tokens: int, head_dim: int) -> int:
    """x [tokens, heads, head_dim] with dense heads, any number of elements from token to token. Returns heads."""
    if x.dim() == 3 and x.dtype in FLOATS:
        rows, heads, columns = x.shape
        _, head_stride, element_stride = x.stride()
        dense = element_stride == 1 and (head_stride == head_dim or heads == 1)
        if dense and rows == tokens and columns == head_dim:
            return heads
    reject(op, field, f"[{tokens}, heads, {head_dim}] in float16, bfloat16 or float32 with dense heads", x)


def check_cache(
    op: str,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    dtype: torch.dtype,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> torch.Size:
    """Both caches [N, G, B, D] alike, in dtype without scales or in float8 with both, [G] float32 -> that shape."""
    shape = key_cache.shape
    stored = dtype if k_scale is None else FLOAT8
    for field, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if len(shape) != 4 or cache.shape != shape or cache.dtype is not stored or not cache.is_contiguous():
            with_scales = "with" if k_scale is not None else "without"
            reject(op, field, f"[N, G, B, D] as the other, contiguous, in {stored} {with_scales} k_scale", cache)
    if shape[0] * shape[1] * shape[2] >= 2**31:
        reject(op, "key_cache", "of fewer than 2^31 slots times heads", key_cache)
    if k_scale is not None or v_scale is not None:
        for field, scales in (("k_scale", k_scale), ("v_scale", v_scale)):
            if scales is None or scales.shape != shape[1:2] or scales.dtype is not torch.float32:
                reject(op, field, f"[{shape[1]}] in float32, or neither given", scales)
    return shape


def check_indices(op: str, field: str, x: torch.Tensor, count: int, dtype: torch.dtype) -> None:
    """x [count] in dtype, contiguous."""
    if x.dim() != 1 or x.shape[0] != count or x.dtype is not dtype or not x.is_contiguous():
        reject(op, field, f"[{count}] in {dtype}, contiguous", x)


def as_bytes(cache: torch.Tensor) -> torch.Tensor:
    """A float8 cache as uint8, which every architecture takes; any other as it is."""
    return cache.view(torch.uint8) if cache.dtype is FLOAT8 else cache
