"""The calls whose kernels are compiled ahead of time: shapes of well-known models, so that every head and block size,
type, window, cap and cache format that the launchers take occurs with the launch parameters that it would get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.triton.copy_blocks import copy_blocks
from kernels.triton.paged_attention import paged_attention
from kernels.triton.reshape_and_cache import reshape_and_cache
from kernels.triton.rms_norm import add_rms_norm, rms_norm
from kernels.triton.rope_and_cache import rope_and_cache
from kernels.triton.silu_and_mul import silu_and_mul

_BLOCKS = 1000
_FLOAT8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Case:
    """A call of some launchers. hot: its kernels are on the way of every token, and must not spill registers."""

    name: str
    call: Callable[[], None]
    hot: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Geometry of a model's attention, and how its cache is kept."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    window: int = 0
    soft_cap: float = 0.0
    float8: bool = False

    def tensor(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor without memory."""
        return torch.empty(shape, dtype=dtype or self.dtype, device="meta")

    def projection(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v as views of one."""
        sizes = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = self.tensor(tokens, sum(sizes), self.head_dim).split(sizes, dim=1)
        return q, k, v

    def caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values."""
        shape = (_BLOCKS, self.kv_heads, self.block_size, self.head_dim)
        dtype = _FLOAT8 if self.float8 else self.dtype
        return self.tensor(*shape, dtype=dtype), self.tensor(*shape, dtype=dtype)

    def scale(self) -> torch.Tensor | None:
        """That of a float8 cache."""
        return self.tensor(self.kv_heads, dtype=torch.float32) if self.float8 else None


def _attend(model: Attention, tokens: int, num_seqs: int, context: int) -> None:
    paged_attention(
        model.projection(tokens)[0],
        *model.caches(),
        model.tensor(num_seqs + 1, dtype=torch.int32),
        model.tensor(num_seqs, dtype=torch.int32),
        model.tensor(num_seqs, context // model.block_size, dtype=torch.int32),
        model.head_dim**-0.5,
        model.window,
        model.soft_cap,
        k_scale=model.scale(),
        v_scale=model.scale(),
    )


def _write(model: Attention) -> None:
    q, k, v = model.projection(64)
    slots = model.tensor(64, dtype=torch.int64)
    cos_sin = model.tensor(8192, model.head_dim, dtype=torch.float32)
    positions = model.tensor(64, dtype=torch.int32)
    rope_and_cache(q, k, v, cos_sin, positions, *model.caches(), slots, model.scale(), model.scale())
    reshape_and_cache(k, v, *model.caches(), slots, model.scale(), model.scale())


def _attention_cases(name: str, model: Attention) -> list[Case]:
    hot = model.dtype is not torch.float32
    return [
        Case(f"{name}, mixed", lambda: _attend(model, 2048, 16, 4096), hot),
        Case(f"{name}, decode", lambda: _attend(model, 256, 256, 512), hot),
        Case(name, lambda: _write(model)),
    ]


def _norms(hidden: int, intermediate: int, dtype: torch.dtype) -> None:
    x = torch.empty((64, hidden), dtype=dtype, device="meta")
    weight = torch.empty(hidden, dtype=dtype, device="meta")
    rms_norm(x, weight, 1e-5)
    add_rms_norm(x, x, weight, 1e-5)
    rms_norm(x.view(64, -1, 64), weight[:64], 1e-5)
    silu_and_mul(torch.empty((64, 2 * intermediate), dtype=dtype, device="meta"))


def _copies(dtype: torch.dtype) -> None:
    device = torch.empty((2, 32, _BLOCKS, 8, 16, 128), dtype=dtype, device="meta").movedim(2, 0)
    host = torch.empty((_BLOCKS, 2, 32, 8, 16, 128), dtype=dtype, device="meta")
    pairs = torch.empty((9, 2), dtype=torch.int64, device="meta")
    copy_blocks(device, device, pairs)
    copy_blocks(device, host, pairs)


def cases() -> list[Case]:
    """All of them."""
    models = {
        "Llama 3 8B, bf16": Attention(heads=32, kv_heads=8, head_dim=128),
        "Llama 3 8B, fp8 cache": Attention(heads=32, kv_heads=8, head_dim=128, float8=True),
        "SmolLM2 135M, fp32": Attention(heads=9, kv_heads=3, head_dim=64, dtype=torch.float32),
        "SmolLM2 135M, bf16": Attention(heads=9, kv_heads=3, head_dim=64),
        "Qwen 2 0.5B, fp8 cache, blocks of 32": Attention(
            heads=14, kv_heads=2, head_dim=64, float8=True, block_size=32
        ),
        "Phi 2, fp16, blocks of 64": Attention(heads=32, kv_heads=32, head_dim=80, dtype=torch.float16, block_size=64),
        "Phi 3 mini, bf16, window, blocks of 32": Attention(
            heads=32, kv_heads=32, head_dim=96, window=2047, block_size=32
        ),
        "Mistral 7B, bf16, window": Attention(heads=32, kv_heads=8, head_dim=128, window=4096),
        "Gemma 2 9B, bf16, cap, window": Attention(heads=16, kv_heads=8, head_dim=256, window=4096, soft_cap=50.0),
        "Gemma 7B, fp8 cache": Attention(heads=16, kv_heads=16, head_dim=256, float8=True),
    }
    found = [case for name, model in models.items() for case in _attention_cases(name, model)]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        found.append(Case(f"hidden 4096, {name}", lambda dtype=dtype: _norms(4096, 14336, dtype)))  # type: ignore[misc]
        found.append(Case(f"{name}", lambda dtype=dtype: _copies(dtype)))  # type: ignore[misc]
    found.append(Case("hidden 576, bfloat16", lambda: _norms(576, 1536, torch.bfloat16)))
    found.append(Case("float8", lambda: _copies(_FLOAT8)))
    return found
