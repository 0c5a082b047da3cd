"""The gated activation of a Llama MLP: silu(gate) * up, where silu(x) = x / (1 + exp(-x)).

Grid (T, I / BLOCK): a program takes BLOCK columns of one token. Bytes moved per token, e to an element: 3 * I * e.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.checks import FLOATS, reject

_BLOCK = 1024  # columns of a program: 8 for each of 128 threads, one load of 16 bytes from either half


@triton.jit
def silu_and_mul_kernel(
    gate_up_ptr,  # [T, 2 * SIZE], row_stride elements from token to token
    out_ptr,  # [T, SIZE]
    row_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(gate_up_ptr + token * row_stride + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * row_stride + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * SIZE + columns, gate / (1.0 + tl.exp(-gate)) * up, mask=mask)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 I] with contiguous rows -> silu(first half) * second half, [T, I] contiguous, of the same type."""
    if gate_up.dim() != 2 or gate_up.dtype not in FLOATS or gate_up.shape[1] % 2 or gate_up.stride(1) != 1:
        reject("silu_and_mul", "gate_up", "[T, 2 I] in float16, bfloat16 or float32 with contiguous rows", gate_up)
    tokens, columns = gate_up.shape
    size = columns // 2
    out = torch.empty((tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    if tokens and size:
        silu_and_mul_kernel[(tokens, -(-size // _BLOCK))](
            gate_up, out, gate_up.stride(0), SIZE=size, BLOCK=_BLOCK, num_warps=4
        )
    return out
