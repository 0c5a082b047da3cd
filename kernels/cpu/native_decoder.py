"""A decoder's whole forward pass as one native call, from parts that `CpuOps` prepared.

The call computes the same bits as its ops called one by one: it consists of them. It takes no lock and no memory of
Python's while it runs.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.ops import HEAD_DIM_MULTIPLE, check_cache, check_indices, check_table
from kernels.cpu.packed_linear import STORAGE_DTYPES, PackedLinear
from kernels.cpu.sampling import NO_SAMPLING, Sampling

# LayerWeights, DecoderWeights and LayerCache in decoder_step.h, whose fields are all 8 bytes wide.
_LAYER = "q5q2q5qq5q5q"
_DECODER = "4q2dqd6q5q"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """One layer. Norm weights are float32: input and post-attention [C], of queries and keys [D] or None.

    qkv [(H + 2 G) D, C], output [C, H D], gate_up [2 I, C], down [C, I].
    """

    input_norm: torch.Tensor
    qkv: PackedLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: PackedLinear
    post_attention_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """A decoder of one layer or more. embedding [V, C] in float32 or bfloat16, cos_sin [max positions, D] and
    final_norm [C] in float32, lm_head [V, C]. window 0 and soft_cap 0 are none."""

    query_heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float
    window: int
    soft_cap: float
    embedding: torch.Tensor
    cos_sin: torch.Tensor
    layers: Sequence[LayerParts]
    final_norm: torch.Tensor
    lm_head: PackedLinear


class StepBatch(Protocol):
    """T tokens of S sequences, R of which want logits: token_ids and slot_mapping [T] int64; positions [T],
    query_start_loc [S + 1], seq_lens [S] and block_tables [S, max blocks] int32; logits_indices [R] int64, places in
    0..T-1. Meanings are those of the ops in `CpuOps`."""

    @property
    def token_ids(self) -> torch.Tensor: ...
    @property
    def positions(self) -> torch.Tensor: ...
    @property
    def slot_mapping(self) -> torch.Tensor: ...
    @property
    def query_start_loc(self) -> torch.Tensor: ...
    @property
    def seq_lens(self) -> torch.Tensor: ...
    @property
    def block_tables(self) -> torch.Tensor: ...
    @property
    def logits_indices(self) -> torch.Tensor: ...


class PagedCaches:
    """The paged KV cache of every layer, checked and described to the native library once.

    keys, values: one tensor [N, G, B, D] per layer, all alike, contiguous, in float32 or bfloat16.
    """

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        if len(keys) != len(values) or not keys:
            raise ValueError(f"caches: as many keys as values are needed, got {len(keys)} and {len(values)}")
        first = keys[0]
        for key_cache, value_cache in zip(keys, values, strict=True):
            if check_cache("caches", key_cache, value_cache) != first.shape or key_cache.dtype is not first.dtype:
                raise ValueError(f"caches: layers must be alike, got {list(key_cache.shape)} in {key_cache.dtype}")
        num_blocks, kv_heads, block_size, head_dim = first.shape
        self.shape = (len(keys), kv_heads, head_dim, num_blocks, block_size)
        self._tensors = (*keys, *values)  # the library holds their addresses
        addresses = [(k.data_ptr(), v.data_ptr()) for k, v in zip(keys, values, strict=True)]
        self._layers = _buffer("2q", addresses)
        self.description = (
            ctypes.addressof(self._layers),
            int(first.dtype is torch.bfloat16),
            num_blocks,
            block_size,
        )


class NativeDecoder:
    """Parts checked and described to the native library once. Raises ValueError where they do not fit together."""

    def __init__(self, library: NativeLibrary, parts: DecoderParts, *, num_threads: int) -> None:
        _check_parts(parts)
        self._parts = parts  # the library holds their addresses
        self._library = library
        self._num_threads = num_threads
        self._layers = _buffer(_LAYER, [_describe_layer(layer) for layer in parts.layers])
        self._decoder = _buffer(_DECODER, [_describe_decoder(parts, ctypes.addressof(self._layers))])
        # The last call of `sample`, and what it was prepared from, whose addresses it holds.
        self._sampling: tuple[StepBatch, PagedCaches, Sampling, Callable[[], int]] | None = None

    @property
    def vocab_size(self) -> int:
        return self._parts.lm_head.out_features

    def forward(self, batch: StepBatch, caches: PagedCaches, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Computes the batch's tokens and writes their keys and values -> logits [R, V] float32, in the order of
        logits_indices. Raises ValueError naming what is out of range; nothing is written then.

        out: where to put them, if not into fresh memory; contiguous.
        """
        shape = (batch.logits_indices.numel(), self.vocab_size)
        if out is not None and (out.shape != shape or out.dtype is not torch.float32 or not out.is_contiguous()):
            raise ValueError(f"decoder_step: out must be {list(shape)} in float32, contiguous")
        logits = torch.empty(shape) if out is None else out
        self._run(batch, caches, self._prepare(batch, caches, logits.data_ptr(), 0, False, NO_SAMPLING))
        return logits

    def hidden_states(self, batch: StepBatch, caches: PagedCaches) -> torch.Tensor:
        """Like `forward`, but gives what the vocabulary projection reads of these rows: [R, C] float32."""
        hidden = torch.empty((batch.logits_indices.numel(), self._parts.lm_head.in_features))
        self._run(batch, caches, self._prepare(batch, caches, 0, hidden.data_ptr(), False, NO_SAMPLING))
        return hidden

    def sample(self, batch: StepBatch, caches: PagedCaches, sampling: Sampling) -> None:
        """Like `forward`, but instead of giving the logits of R rows it fills the results of `sampling`.

        Given the objects of the call before once more, it looks at the values in their tensors and arrays only.
        """
        last = self._sampling
        if last is None or last[0] is not batch or last[1] is not caches or last[2] is not sampling:
            last = self._sampling = batch, caches, sampling, self._prepare_sampling(batch, caches, sampling)
        self._run(batch, caches, last[3])

    def _prepare_sampling(self, batch: StepBatch, caches: PagedCaches, sampling: Sampling) -> Callable[[], int]:
        rows = batch.logits_indices.numel()
        if (sampling.rows, sampling.width) != (rows, self.vocab_size):
            raise ValueError(
                f"decoder_step: sampling must be of {rows} rows and {self.vocab_size} tokens, got {sampling.rows} and "
                f"{sampling.width}"
            )
        return self._prepare(batch, caches, 0, 0, True, sampling.description)

    def _prepare(
        self,
        batch: StepBatch,
        caches: PagedCaches,
        logits: int,
        hidden: int,
        samples: bool,
        sampling: tuple[int, ...],
    ) -> Callable[[], int]:
        """The call, once the shapes and types of what it reads are checked."""
        op = "decoder_step"
        tokens, num_seqs, rows = batch.token_ids.numel(), batch.seq_lens.numel(), batch.logits_indices.numel()
        check_indices(op, "token_ids", batch.token_ids, tokens, torch.int64)
        check_indices(op, "positions", batch.positions, tokens, torch.int32)
        check_indices(op, "slot_mapping", batch.slot_mapping, tokens, torch.int64)
        check_indices(op, "query_start_loc", batch.query_start_loc, num_seqs + 1, torch.int32)
        check_indices(op, "seq_lens", batch.seq_lens, num_seqs, torch.int32)
        table_stride, table_width = check_table(op, batch.block_tables, num_seqs)
        check_indices(op, "logits_indices", batch.logits_indices, rows, torch.int64)
        self._check_caches(caches)
        return self._library.decoder_step(
            ctypes.addressof(self._decoder),
            *caches.description,
            batch.token_ids.data_ptr(),
            batch.positions.data_ptr(),
            batch.slot_mapping.data_ptr(),
            batch.query_start_loc.data_ptr(),
            batch.seq_lens.data_ptr(),
            batch.block_tables.data_ptr(),
            table_stride,
            table_width,
            num_seqs,
            tokens,
            batch.logits_indices.data_ptr(),
            rows,
            logits,
            hidden,
            self._num_threads,
            samples,
            *sampling,
        )

    def _run(self, batch: StepBatch, caches: PagedCaches, call: Callable[[], int]) -> None:
        if status := call():
            self._explain(status, batch, caches)

    def _check_caches(self, caches: PagedCaches) -> None:
        parts = self._parts
        if caches.shape[:3] != (len(parts.layers), parts.kv_heads, parts.head_dim):
            raise ValueError(
                f"decoder_step: caches must be of {len(parts.layers)} layers, {parts.kv_heads} heads and head size "
                f"{parts.head_dim}, got {caches.shape[0]}, {caches.shape[1]} and {caches.shape[2]}"
            )

    def _explain(self, status: int, batch: StepBatch, caches: PagedCaches) -> NoReturn:
        _, _, _, num_blocks, block_size = caches.shape
        tokens, table_width = batch.token_ids.numel(), batch.block_tables.shape[1]
        if status == _NO_MEMORY:
            raise MemoryError("decoder_step: no memory for the activations")
        raise ValueError(
            "decoder_step: "
            + {
                1: f"a position is outside 0..{self._parts.cos_sin.shape[0] - 1}",
                2: f"a slot of slot_mapping is outside 0..{num_blocks * block_size - 1}",
                3: f"a token id is outside 0..{self.vocab_size - 1}",
                4: f"an entry of logits_indices is outside 0..{tokens - 1}",
                5: f"query_start_loc must rise from 0 to {tokens} and seq_lens be between a sequence's number of "
                f"queries and {table_width * block_size}",
                6: f"block_tables name a block outside 0..{num_blocks - 1} within a sequence's length",
            }[status]
        )


_NO_MEMORY = 7


def _buffer(fields: str, rows: Sequence[tuple[int | float, ...]]) -> ctypes.Array[ctypes.c_char]:
    """An array of structs in memory that stays where it is."""
    content = b"".join(struct.pack(fields, *row) for row in rows)
    return ctypes.create_string_buffer(content, len(content))


def _address(x: torch.Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _describe_layer(layer: LayerParts) -> tuple[int | float, ...]:
    return (
        layer.input_norm.data_ptr(),
        *layer.qkv.description,
        _address(layer.q_norm),
        _address(layer.k_norm),
        *layer.output.description,
        layer.post_attention_norm.data_ptr(),
        *layer.gate_up.description,
        *layer.down.description,
    )


def _describe_decoder(parts: DecoderParts, layers: int) -> tuple[int | float, ...]:
    return (
        len(parts.layers),
        parts.query_heads,
        parts.kv_heads,
        parts.head_dim,
        parts.eps,
        parts.scale,
        parts.window,
        parts.soft_cap,
        parts.embedding.data_ptr(),
        parts.embedding.dtype is torch.bfloat16,
        parts.cos_sin.data_ptr(),
        parts.cos_sin.shape[0],
        layers,
        parts.final_norm.data_ptr(),
        *parts.lm_head.description,
    )


def _check_parts(parts: DecoderParts) -> None:
    hidden, head_dim = parts.lm_head.in_features, parts.head_dim
    q_size, kv_size = parts.query_heads * head_dim, parts.kv_heads * head_dim
    if head_dim % HEAD_DIM_MULTIPLE or parts.query_heads % parts.kv_heads or parts.window < 0 or parts.soft_cap < 0:
        raise ValueError(
            f"decoder: head_dim must be a multiple of {HEAD_DIM_MULTIPLE}, query_heads one of kv_heads, window and "
            f"soft_cap at least 0, got {head_dim}, {parts.query_heads}, {parts.kv_heads}, {parts.window} and "
            f"{parts.soft_cap}"
        )
    if not parts.layers:
        raise ValueError("decoder: at least one layer is needed")
    if parts.embedding.dtype not in STORAGE_DTYPES:
        raise ValueError(f"decoder: embedding must be in float32 or bfloat16, got {parts.embedding.dtype}")
    _check("embedding", parts.embedding, (parts.lm_head.out_features, hidden), parts.embedding.dtype)
    _check("cos_sin", parts.cos_sin, (parts.cos_sin.shape[0], head_dim))
    _check("final_norm", parts.final_norm, (hidden,))
    for layer in parts.layers:
        intermediate = layer.down.in_features
        _check("input_norm", layer.input_norm, (hidden,))
        _check("post_attention_norm", layer.post_attention_norm, (hidden,))
        if (layer.q_norm is None) != (layer.k_norm is None):
            raise ValueError("decoder: q_norm and k_norm come together or not at all")
        for name, norm in (("q_norm", layer.q_norm), ("k_norm", layer.k_norm)):
            if norm is not None:
                _check(name, norm, (head_dim,))
        for name, linear, shape in (
            ("qkv", layer.qkv, (q_size + 2 * kv_size, hidden)),
            ("output", layer.output, (hidden, q_size)),
            ("gate_up", layer.gate_up, (2 * intermediate, hidden)),
            ("down", layer.down, (hidden, intermediate)),
        ):
            if (linear.out_features, linear.in_features) != shape:
                got = [linear.out_features, linear.in_features]
                raise ValueError(f"decoder: {name} must be {list(shape)}, got {got}")
        first = parts.layers[0]
        if layer.down.in_features != first.down.in_features:
            raise ValueError("decoder: all layers must have one intermediate size")


def _check(name: str, x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    if x.shape != shape or x.dtype is not dtype or not x.is_contiguous():
        raise ValueError(
            f"decoder: {name} must be {list(shape)} in {dtype}, contiguous, got {list(x.shape)} in {x.dtype}"
        )
