"""Typed, validating launchers of the native CPU ops on torch tensors.

Activations are float32; weights are float32, bfloat16 or int8, the KV cache is float32 or bfloat16. A decode step makes
hundreds of these calls, so validation is a few comparisons per tensor; what depends on values (positions, slots, block
ids, lengths) is checked by the native code before it touches memory. All errors are ValueErrors that name the op, the
field and the limit.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.packed_linear import STORAGE_DTYPES, PackedLinear
from kernels.cpu.sampling import Sampling, address, row_addresses
from kernels.cpu.weight_memory import WeightMemory
from kernels.quantize_int8 import quantize_int8

_FLOAT32, _BFLOAT16, _INT32, _INT64 = torch.float32, torch.bfloat16, torch.int32, torch.int64
HEAD_DIM_MULTIPLE = 16  # lanes of a vector: attention has no tail path
QUANTIZATIONS = ("none", "int8")  # of linear layers


def _reject(op: str, field: str, expected: str, got: torch.Tensor) -> NoReturn:
    raise ValueError(
        f"{op}: {field} must be {expected}, got {list(got.shape)} in {got.dtype} with strides {got.stride()}"
    )


def _check_heads(op: str, field: str, x: torch.Tensor, tokens: int, head_dim: int) -> tuple[int, int]:
    """x [T, heads, D] with dense heads, tokens any number of elements apart. Returns heads and that number."""
    if x.dim() == 3 and x.dtype is _FLOAT32:
        rows, heads, columns = x.shape
        token_stride, head_stride, element_stride = x.stride()
        dense = element_stride == 1 and (head_stride == head_dim or heads == 1)
        if dense and rows == tokens and columns == head_dim:
            return heads, token_stride
    _reject(op, field, f"[{tokens}, heads, {head_dim}] in float32 with dense heads", x)


def check_cache(op: str, key_cache: torch.Tensor, value_cache: torch.Tensor) -> torch.Size:
    """Both caches [N, G, B, D] alike. Returns that shape. Within a block and head, keys lie transposed, [words of D, B]
    with 32-bit words (see attention_split.h); only the native ops read them."""
    shape, dtype = key_cache.shape, key_cache.dtype
    if dtype not in STORAGE_DTYPES or len(shape) != 4 or not key_cache.is_contiguous():
        _reject(op, "key_cache", "[N, G, B, D] contiguous, in float32 or bfloat16", key_cache)
    if value_cache.dtype is not dtype or value_cache.shape != shape or not value_cache.is_contiguous():
        _reject(op, "value_cache", f"{list(shape)} contiguous in {dtype} as key_cache is", value_cache)
    return shape


def _check_unscaled(op: str, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None) -> None:
    if k_scale is not None or v_scale is not None:
        raise ValueError(f"{op}: k_scale and v_scale must be None, the CPU has no kernels for scaled caches")


def check_indices(op: str, field: str, x: torch.Tensor, count: int, dtype: torch.dtype) -> None:
    """x [count], contiguous, in dtype."""
    if x.numel() != count or x.dtype is not dtype or not x.is_contiguous():
        _reject(op, field, f"[{count}] in {str(dtype)[6:]}, contiguous", x)


def check_table(op: str, block_tables: torch.Tensor, num_seqs: int) -> tuple[int, int]:
    """block_tables [num_seqs, width] with contiguous rows. Returns their distance and the width."""
    if block_tables.dim() == 2 and block_tables.dtype is _INT32:
        rows, width = block_tables.shape
        row_stride, entry_stride = block_tables.stride()
        if rows == num_seqs and (entry_stride == 1 or width <= 1):
            return row_stride, width
    _reject(op, "block_tables", f"[{num_seqs}, max blocks] in int32 with contiguous rows", block_tables)


class CpuOps:
    """The ops of a transformer on the CPU, with a fixed number of threads. No result depends on that number."""

    __slots__ = ("_library", "_memory", "_num_threads", "_quantization")

    def __init__(self, library: NativeLibrary, *, num_threads: int, quantization: str = "none") -> None:
        """quantization: one of QUANTIZATIONS, what prepare_linear makes of weights."""
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {num_threads}")
        if quantization not in QUANTIZATIONS:
            raise ValueError(f"quantization must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}")
        self._library = library
        self._memory = WeightMemory()
        self._num_threads = num_threads
        self._quantization = quantization

    @property
    def instruction_set(self) -> str:
        return self._library.instruction_set

    @property
    def library(self) -> NativeLibrary:
        return self._library

    @property
    def num_threads(self) -> int:
        return self._num_threads

    def prepare_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        """Packs weight [N, K] and bias [N] once; the tensors given may be freed afterwards."""
        scales = None
        if self._quantization == "int8":
            weight, scales = quantize_int8(weight)
        return PackedLinear(
            self._library, weight, bias, scales=scales, memory=self._memory, num_threads=self._num_threads
        )

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [T, C] or [T, heads, C], dense but for the distance between tokens, weight [C] -> the same shape, dense."""
        shape, strides = x.shape, x.stride()
        outer, channels = shape[0], shape[-1]
        if len(shape) == 2:
            inner, dense = 1, strides[1] == 1
        elif len(shape) == 3:
            inner, dense = shape[1], strides[2] == 1 and (strides[1] == channels or shape[1] == 1)
        else:
            _reject("rms_norm", "x", "[T, C] or [T, heads, C]", x)
        if not dense or x.dtype is not _FLOAT32:
            _reject("rms_norm", "x", "in float32 and dense but for its first dimension", x)
        bfloat16 = self._check_norm_weight("rms_norm", weight, channels)
        out = torch.empty(shape)
        self._library.rms_norm(
            x.data_ptr(),
            outer,
            inner,
            strides[0],
            weight.data_ptr(),
            bfloat16,
            out.data_ptr(),
            channels,
            eps,
            self._num_threads,
        )
        return out

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """residual += x in place, then rms_norm of it. x, residual [T, C] contiguous, weight [C] -> [T, C]."""
        shape = x.shape
        if len(shape) != 2 or x.dtype is not _FLOAT32 or not x.is_contiguous():
            _reject("add_rms_norm", "x", "[T, C] in float32, contiguous", x)
        if residual.shape != shape or residual.dtype is not _FLOAT32 or not residual.is_contiguous():
            _reject("add_rms_norm", "residual", f"{list(shape)} in float32, contiguous", residual)
        bfloat16 = self._check_norm_weight("add_rms_norm", weight, shape[1])
        out = torch.empty(shape)
        self._library.add_rms_norm(
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            bfloat16,
            out.data_ptr(),
            shape[0],
            shape[1],
            eps,
            self._num_threads,
        )
        return out

    @staticmethod
    def _check_norm_weight(op: str, weight: torch.Tensor, channels: int) -> bool:
        dtype = weight.dtype
        if weight.dim() != 1 or weight.shape[0] != channels or dtype not in STORAGE_DTYPES or weight.stride(0) != 1:
            _reject(op, "weight", f"[{channels}] in float32 or bfloat16, contiguous", weight)
        return dtype is _BFLOAT16

    def rope_and_cache(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
    ) -> None:
        """Rotates q [T, H, D] and k [T, G, D] in place by cos_sin [max positions, D] at positions [T] int32 and writes
        k and v [T, G, D] to slots slot_mapping [T] int64 of the caches [N, G, B, D]. Nothing is written if one value is
        out of range. Scaled caches are not supported."""
        op = "rope_and_cache"
        _check_unscaled(op, k_scale, v_scale)
        num_blocks, kv_heads, block_size, head_dim = check_cache(op, key_cache, value_cache)
        tokens = slot_mapping.numel()
        query_heads, q_stride = _check_heads(op, "q", q, tokens, head_dim)
        key_heads, k_stride = _check_heads(op, "k", k, tokens, head_dim)
        value_heads, v_stride = _check_heads(op, "v", v, tokens, head_dim)
        if key_heads != kv_heads or value_heads != kv_heads:
            _reject(op, "k and v", f"of {kv_heads} heads as the KV cache is", k if key_heads != kv_heads else v)
        if cos_sin.dim() != 2 or cos_sin.shape[1] != head_dim or cos_sin.dtype is not _FLOAT32 or head_dim % 2:
            _reject(op, "cos_sin", f"[max positions, {head_dim}] in float32, the head size even", cos_sin)
        if not cos_sin.is_contiguous():
            _reject(op, "cos_sin", "contiguous", cos_sin)
        check_indices(op, "positions", positions, tokens, _INT32)
        check_indices(op, "slot_mapping", slot_mapping, tokens, _INT64)
        status = self._library.rope_and_cache(
            q.data_ptr(),
            q_stride,
            query_heads,
            k.data_ptr(),
            k_stride,
            v.data_ptr(),
            v_stride,
            kv_heads,
            cos_sin.data_ptr(),
            cos_sin.shape[0],
            positions.data_ptr(),
            slot_mapping.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            key_cache.dtype is _BFLOAT16,
            num_blocks,
            block_size,
            head_dim,
            tokens,
            self._num_threads,
        )
        if status == 1:
            raise ValueError(f"{op}: a position is outside 0..{cos_sin.shape[0] - 1}: {positions.tolist()}")
        if status == 2:
            limit = num_blocks * block_size - 1
            raise ValueError(f"{op}: a slot of slot_mapping is outside 0..{limit}: {slot_mapping.tolist()}")

    def attention(
        self,
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
        """Causal attention of each sequence's last queries over its paged keys and values.

        q [T, H, D] with dense heads, D a multiple of 16; caches [N, G, B, D], G a divisor of H; query_start_loc
        [S + 1], seq_lens [S] and block_tables [S, max blocks] int32; window 0 is none; soft_cap 0 is none, else scores
        become soft_cap * tanh(score / soft_cap) -> [T, H, D] contiguous."""
        op = "attention"
        _check_unscaled(op, k_scale, v_scale)
        num_blocks, kv_heads, block_size, head_dim = check_cache(op, key_cache, value_cache)
        tokens = q.size(0)
        query_heads, q_stride = _check_heads(op, "q", q, tokens, head_dim)
        if query_heads % kv_heads or head_dim % HEAD_DIM_MULTIPLE:
            expected = f"of a multiple of {kv_heads} heads, their size a multiple of {HEAD_DIM_MULTIPLE}"
            _reject(op, "q", expected, q)
        num_seqs = seq_lens.numel()
        check_indices(op, "seq_lens", seq_lens, num_seqs, _INT32)
        check_indices(op, "query_start_loc", query_start_loc, num_seqs + 1, _INT32)
        table_stride, table_width = check_table(op, block_tables, num_seqs)
        if window < 0:
            raise ValueError(f"{op}: window must be 0 (none) or positive, got {window}")
        if not 0 <= soft_cap < float("inf"):
            raise ValueError(f"{op}: soft_cap must be 0 (none) or positive and finite, got {soft_cap}")
        out = torch.empty((tokens, query_heads, head_dim))
        status = self._library.attention(
            q.data_ptr(),
            q_stride,
            tokens,
            query_heads,
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            key_cache.dtype is _BFLOAT16,
            num_blocks,
            kv_heads,
            block_size,
            head_dim,
            query_start_loc.data_ptr(),
            seq_lens.data_ptr(),
            block_tables.data_ptr(),
            table_stride,
            table_width,
            num_seqs,
            scale,
            window,
            soft_cap,
            out.data_ptr(),
            query_heads * head_dim,
            self._num_threads,
        )
        if status:
            self._explain_attention(status, query_start_loc, seq_lens, tokens, num_blocks, table_width * block_size)
        return out

    @staticmethod
    def _explain_attention(
        status: int,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        tokens: int,
        num_blocks: int,
        table_tokens: int,
    ) -> NoReturn:
        if status == 1:
            raise ValueError(
                f"attention: query_start_loc must rise from 0 to {tokens} and seq_lens be between a sequence's number "
                f"of queries and {table_tokens}, got {query_start_loc.tolist()} and {seq_lens.tolist()}"
            )
        if status == 2:
            raise ValueError(
                f"attention: block_tables name a block outside 0..{num_blocks - 1} within a sequence's length"
            )
        raise MemoryError("attention: no memory for the partial results")

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [T, 2 I] float32, rows contiguous -> silu(first half) * second half, [T, I]."""
        rows, columns = gate_up.shape
        row_stride, element_stride = gate_up.stride()
        if columns % 2 or gate_up.dtype is not _FLOAT32 or element_stride != 1:
            _reject("silu_and_mul", "gate_up", "[T, 2 I] in float32 with contiguous rows", gate_up)
        size = columns // 2
        out = torch.empty((rows, size))
        self._library.silu_and_mul(gate_up.data_ptr(), row_stride, out.data_ptr(), size, rows, size, self._num_threads)
        return out

    def sample(
        self,
        logits: torch.Tensor,
        sampling: Sampling,
        *,
        masked: npt.NDArray[np.int64] | None = None,
        kept: npt.NDArray[np.bool_] | None = None,
        changed: npt.NDArray[np.int64] | None = None,
        raw: torch.Tensor | None = None,
    ) -> None:
        """Fills the results of `sampling`, made for logits [R, V] in float32 with contiguous rows.

        masked [M], kept [M, V]: rows that keep these tokens only; the logits of the others are written over.
        changed [K], raw [K, V]: rows whose logprobs are of these logits instead.
        """
        rows, width = sampling.rows, sampling.width
        _check_rows("logits", logits, rows, width)
        raw_rows = kept_rows = 0
        if masked is not None and kept is not None and masked.size:
            if kept.shape != (masked.size, width) or kept.dtype != np.bool_ or not kept.flags.c_contiguous:
                raise ValueError(f"sample: kept must be [{masked.size}, {width}] in bool, contiguous")
            masks = row_addresses(rows, masked, address(kept), width)
            kept_rows = address(masks)
        if changed is not None and raw is not None and changed.size:
            _check_rows("raw", raw, changed.size, width)
            of_raw = row_addresses(rows, changed, raw.data_ptr(), raw.stride(0) * raw.itemsize)
            raw_rows = address(of_raw)
        status = self._library.sample(
            logits.data_ptr(),
            logits.stride(0),
            raw_rows,
            kept_rows,
            rows,
            width,
            self._num_threads,
            *sampling.description,
        )
        if status:
            raise MemoryError("sample: no memory for a row's candidates")


def _check_rows(name: str, x: torch.Tensor, rows: int, width: int) -> None:
    if x.shape != (rows, width) or x.dtype is not _FLOAT32 or (x.stride(1) != 1 and width > 1):
        _reject("sample", name, f"[{rows}, {width}] in float32 with contiguous rows", x)
