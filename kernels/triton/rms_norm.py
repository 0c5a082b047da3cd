"""RMS normalisation, alone or fused with the addition to the residual stream.

Grid (rows / ROWS): a program normalises ROWS rows of C elements in one pass, in registers: long rows, of hidden states,
one at a time, short ones, of heads, several. Bytes moved per row, e to an element: 2 * C * e alone, 4 * C * e with a
residual (x and residual read, residual and result written); the weight comes from the L2 cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_tiles import next_power_of_2
from kernels.triton.checks import FLOATS, reject

MAX_CHANNELS = 32768  # a row must fit the registers of one program
_TILE_ELEMENTS = 2048  # of short rows in a program


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x_ptr,  # [T, HEADS, C], x_stride elements from token to token
    residual_ptr,  # [T, C], None without residual
    weight_ptr,  # [C]
    out_ptr,  # [T, HEADS, C]
    num_rows,
    x_stride,
    eps,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_C)
    mask = (rows < num_rows)[:, None] & (columns < CHANNELS)[None, :]
    x_offsets = rows // HEADS * x_stride + rows % HEADS * CHANNELS
    dense = rows[:, None] * CHANNELS + columns[None, :]
    x = tl.load(x_ptr + x_offsets[:, None] + columns[None, :], mask=mask, other=0.0)
    wide = x.to(tl.float32)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + dense, mask=mask, other=0.0)
        # What is normalised is what the stream keeps: the sum, rounded to its type.
        summed = (wide + residual.to(tl.float32)).to(residual.dtype)
        tl.store(residual_ptr + dense, summed, mask=mask)
        wide = summed.to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=columns < CHANNELS, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / CHANNELS + eps)
    tl.store(out_ptr + dense, wide * scale[:, None] * weight[None, :], mask=mask)


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, heads: int, channels: int
) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows = x.shape[0] * heads
    if num_rows == 0:
        return out
    block_c = next_power_of_2(channels)
    rows = max(1, _TILE_ELEMENTS // block_c)
    rms_norm_kernel[(-(-num_rows // rows),)](
        x,
        residual,
        weight,
        out,
        num_rows,
        x.stride(0),
        eps,
        HEADS=heads,
        CHANNELS=channels,
        BLOCK_C=block_c,
        ROWS=rows,
        num_warps=min(16, max(4, rows * block_c // 512)),  # 16 elements a thread, two loads of 16 bytes
    )
    return out


def _check_weight(op: str, x: torch.Tensor, weight: torch.Tensor) -> None:
    channels = x.shape[-1]
    if x.dtype not in FLOATS or not 0 < channels <= MAX_CHANNELS:
        reject(op, "x", f"in float16, bfloat16 or float32, of 1 to {MAX_CHANNELS} channels", x)
    if weight.shape != x.shape[-1:] or weight.dtype not in FLOATS or weight.stride(0) != 1:
        reject(op, "weight", f"[{channels}] in float16, bfloat16 or float32, contiguous", weight)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, C] or [T, heads, C], dense but for the distance between tokens, weight [C] ->
    x * rsqrt(mean(x^2) + eps) * weight, of x's shape and type, dense. Raises ValueError naming the field."""
    op = "rms_norm"
    shape, strides = x.shape, x.stride()
    if len(shape) not in (2, 3):
        reject(op, "x", "[T, C] or [T, heads, C]", x)
    heads = 1 if len(shape) == 2 else shape[1]
    if strides[-1] != 1 or (heads > 1 and strides[1] != shape[-1]):
        reject(op, "x", "dense but for its first dimension", x)
    _check_weight(op, x, weight)
    return _launch(x, None, weight, eps, heads, shape[-1])


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """residual += x in place, then `rms_norm` of it. x, residual [T, C] alike, contiguous, weight [C] -> [T, C]."""
    op = "add_rms_norm"
    if x.dim() != 2 or not x.is_contiguous():
        reject(op, "x", "[T, C], contiguous", x)
    if residual.shape != x.shape or residual.dtype is not x.dtype or not residual.is_contiguous():
        reject(op, "residual", f"{list(x.shape)} in {x.dtype}, contiguous", residual)
    _check_weight(op, x, weight)
    return _launch(x, residual, weight, eps, 1, x.shape[1])
