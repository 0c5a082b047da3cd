"""Batched copies of blocks: copy-on-write within a cache, and swapping between a cache and host memory.

Grid (pairs * 2 * L, pieces): a program copies PIECE elements of one block's keys or values of one layer. Bytes moved
per pair: a block read and a block written, 4 * L * G * B * D elements. Host blocks take part as page-locked memory,
which the GPU addresses over the bus: one launch swaps a whole phase, where a copy engine would need a command for each
block and layer, since a block's layers are apart on the device. Those commands, though, run beside kernels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.checks import as_bytes, reject

_PIECE = 4096  # elements of a program: in 16 bits, 4 loads of 16 bytes in flight for each of 128 threads


@triton.jit
def copy_blocks_kernel(
    source_ptr,  # [N, 2, L, PART], strides source_block, source_half, source_layer, 1
    destination_ptr,  # [N', 2, L, PART]
    pairs_ptr,  # [P, 2] int64
    source_block,
    source_half,
    source_layer,
    destination_block,
    destination_half,
    destination_layer,
    LAYERS: tl.constexpr,
    PART: tl.constexpr,
    PIECE: tl.constexpr,
):
    pair = tl.program_id(0).to(tl.int64) // (2 * LAYERS)
    half = tl.program_id(0).to(tl.int64) // LAYERS % 2
    layer = tl.program_id(0).to(tl.int64) % LAYERS
    elements = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    source = tl.load(pairs_ptr + 2 * pair) * source_block + half * source_half + layer * source_layer
    destination = tl.load(pairs_ptr + 2 * pair + 1) * destination_block
    destination += half * destination_half + layer * destination_layer
    copied = tl.load(source_ptr + source + elements, mask=elements < PART)
    tl.store(destination_ptr + destination + elements, copied, mask=elements < PART)


def copy_blocks(source: torch.Tensor, destination: torch.Tensor, pairs: torch.Tensor) -> None:
    """destination[pairs[i, 1]] = source[pairs[i, 0]] for every i, in one launch.

    source [N, 2, L, G, B, D] and destination [N', 2, L, G, B, D] of one type, with any strides of the first three
    dimensions, the last three dense. They may be the same tensor, and either may be page-locked host memory. pairs
    [P, 2] int64, on the GPU; no destination is named twice or is a source. Raises ValueError naming the field; block
    ids out of range are not checked.
    """
    op = "copy_blocks"
    for field, blocks in (("source", source), ("destination", destination)):
        dense = blocks.dim() == 6 and blocks.stride()[3:] == (blocks.shape[4] * blocks.shape[5], blocks.shape[5], 1)
        if not dense or blocks.shape[1] != 2:
            reject(op, field, "[N, 2, L, G, B, D], the last three dimensions dense", blocks)
    if destination.shape[1:] != source.shape[1:] or destination.dtype is not source.dtype:
        reject(op, "destination", f"of blocks {list(source.shape[1:])} in {source.dtype}", destination)
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.dtype is not torch.int64 or not pairs.is_contiguous():
        reject(op, "pairs", "[P, 2] in int64, contiguous", pairs)
    if pairs.shape[0] == 0:
        return
    _, halves, layers, heads, block_size, head_dim = source.shape
    part = heads * block_size * head_dim
    copy_blocks_kernel[(pairs.shape[0] * halves * layers, -(-part // _PIECE))](
        as_bytes(source),
        as_bytes(destination),
        pairs,
        *source.stride()[:3],
        *destination.stride()[:3],
        LAYERS=layers,
        PART=part,
        PIECE=_PIECE,
        num_warps=4,
    )
