"""Inputs and comparisons that the kernel tests share."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from kernels.cpu.ops import CpuOps

ROUNDS_ACTIVATIONS = ("x86-64-v4-bf16",)  # instruction sets with bfloat16 dot products
MULTIPLIES_INTEGERS = ("x86-64-v4", "x86-64-v3")  # where bfloat16 and int8 weights are multiplied in integers
RUBBISH = (2**31 - 1, -1, 1_000_000, -(2**31))  # what a block-table entry past a sequence's end may hold


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Equal to `tolerance`, relative to the element or to the largest element, whichever is more."""
    assert actual.shape == expected.shape
    largest = float(expected.float().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance * largest)


def native_keys(key_cache: torch.Tensor) -> torch.Tensor:
    """Keys [N, G, B, D] as the native ops lay them out: words of 32 bits, [N, G, words of D, B], in the same shape."""
    words = key_cache.view(torch.float32 if key_cache.dtype is torch.bfloat16 else key_cache.dtype)
    return words.transpose(2, 3).reshape(-1).view(key_cache.dtype).view(key_cache.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """Sequences of given (number of queries, length) over a shuffled paged KV cache whose unused slots are NaN."""

    q: torch.Tensor  # [T, H, D], a strided view of a fused projection
    key_cache: torch.Tensor  # [N, G, B, D]
    value_cache: torch.Tensor
    query_start_loc: torch.Tensor  # [S + 1]
    seq_lens: torch.Tensor  # [S]
    clean_tables: torch.Tensor  # [S, M]: zeros past a sequence's end
    block_tables: torch.Tensor  # [S, M]: rubbish past the end and before the window
    scale: float
    window: int

    def to(self, device: torch.device) -> AttentionCase:
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.type == "torch.Tensor"}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})

    def call(self, attention, *, clean: bool = False, **options) -> torch.Tensor:  # type: ignore[no-untyped-def]
        """`attention` is any implementation of the op; only the reference needs clean tables."""
        return attention(
            self.q,
            self.key_cache,
            self.value_cache,
            self.query_start_loc,
            self.seq_lens,
            self.clean_tables if clean else self.block_tables,
            self.scale,
            self.window,
            **options,
        )

    def call_native(self, ops: CpuOps, soft_cap: float = 0.0) -> torch.Tensor:
        return ops.attention(
            self.q,
            native_keys(self.key_cache),
            self.value_cache,
            self.query_start_loc,
            self.seq_lens,
            self.block_tables,
            self.scale,
            self.window,
            soft_cap,
        )


def make_attention_case(
    sequences: list[tuple[int, int]],
    *,
    query_heads: int = 3,
    kv_heads: int = 1,
    head_dim: int = 64,
    block_size: int = 16,
    window: int = 0,
    dtype: torch.dtype = torch.float32,
) -> AttentionCase:
    blocks_of = [-(-length // block_size) for _, length in sequences]
    num_blocks, width = sum(blocks_of) + 3, max(blocks_of) + 2
    order = torch.randperm(num_blocks, dtype=torch.int32)
    caches = torch.full((2, num_blocks, kv_heads, block_size, head_dim), float("nan"), dtype=dtype)
    clean = torch.zeros((len(sequences), width), dtype=torch.int32)
    rubbish = torch.tensor(RUBBISH, dtype=torch.int32).repeat(width)[:width].repeat(len(sequences), 1)
    used = 0
    for row, ((queries, length), blocks) in enumerate(zip(sequences, blocks_of, strict=True)):
        table = order[used : used + blocks]
        used += blocks
        clean[row, :blocks] = table
        trimmed = max(0, length - queries - window + 1) // block_size if window else 0
        rubbish[row, trimmed:blocks] = table[trimmed:]
        positions = torch.arange(length)
        filled = torch.randn(length, 2, kv_heads, head_dim).to(dtype)
        caches[:, table.long()[positions // block_size], :, positions % block_size] = filled
    query_lens = torch.tensor([0] + [queries for queries, _ in sequences], dtype=torch.int32)
    tokens = int(query_lens.sum())
    fused = torch.randn(tokens, (query_heads + 2 * kv_heads) * head_dim)
    return AttentionCase(
        q=fused[:, : query_heads * head_dim].view(tokens, query_heads, head_dim),
        key_cache=caches[0].contiguous(),
        value_cache=caches[1].contiguous(),
        query_start_loc=query_lens.cumsum(0, dtype=torch.int32),
        seq_lens=torch.tensor([length for _, length in sequences], dtype=torch.int32),
        clean_tables=clean,
        block_tables=rubbish,
        scale=head_dim**-0.5,
        window=window,
    )
