"""The one interface between models and kernels.

A backend is chosen once, when the worker starts, and passed to the model's constructor; nothing else asks what device
or instruction set there is. Shapes: T tokens of a step, S sequences, H query heads, G key/value heads, D head size, N
blocks, B tokens per block. Activations are float32 on the `cpu` backend and of the model's dtype on the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from worker.backend.block_copies import Blocks

if TYPE_CHECKING:
    from worker.models.decoder import Decoder
    from worker.models.model import Model


class Linear(Protocol):
    """A prepared linear layer: y = x @ weight.T + bias."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, K] -> [T, N]."""
        ...

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What the layer keeps in memory; a tensor may be another's too."""
        ...


class Backend(Protocol):
    """The ops of a transformer over a paged KV cache."""

    name: str
    device: torch.device
    activation_dtype: torch.dtype
    head_dim_multiple: int  # head sizes that attention serves are multiples of it
    fp8_kv_cache: bool  # whether caches may be in float8_e4m3fn, with scales

    def prepare_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Packs weight [N, K] and bias [N] once, at load; the tensors given may be freed afterwards."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., C], weight [C] -> x * rsqrt(mean(x^2) + eps) * weight, same shape."""
        ...

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """residual += x in place, then rms_norm of it. x, residual [T, C]."""
        ...

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
        """Rotates q [T, H, D] and k [T, G, D] in place (halves layout: element i pairs with i + D/2) by
        cos_sin [max positions, D] (cosines of D/2 angles, then sines, float32) at positions [T] (int32), then writes k
        and v [T, G, D] to slot slot_mapping [T] (int64, block * B + offset) of key_cache and value_cache [N, G, B, D].
        q, k and v may be strided views of one fused projection: only the last dimension must be contiguous, and the
        head dimension dense (stride D). k_scale, v_scale [G] float32 go with caches in float8, where a value is stored
        divided by its head's scale; None otherwise. A backend may order the numbers within a block as it likes: only
        its own attention reads them, and blocks are copied whole."""
        ...

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
        """Causal attention of each sequence's last queries over its paged keys and values; varlen, so one call serves
        prefill, chunked prefill and decode. q [T, H, D]; query_start_loc [S + 1], seq_lens [S] (tokens in the cache,
        this step's included), block_tables [S, max blocks] int32, entries past a sequence's length are undefined.
        window: 0 is none, w lets a query see itself and the w - 1 positions before. soft_cap: 0 is none, with c a
        score s, after `scale`, becomes c * tanh(s / c). k_scale, v_scale: as in rope_and_cache. -> [T, H, D]."""
        ...

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [T, 2 I] -> silu(first half) * second half, [T, I]."""
        ...

    def copy_blocks(
        self, from_blocks: torch.Tensor, sources: Blocks, to_blocks: torch.Tensor, destinations: Blocks
    ) -> None:
        """to_blocks[destinations[i]] = from_blocks[sources[i]] for all i, in the order of the device's stream. Both are
        [N, 2, L, G, B, D], the KV cache of all layers or host blocks; no destination is named twice or is a source."""
        ...

    def describe(self) -> dict[str, Any]:
        """What was chosen and detected, for the log line at start: instruction set, threads."""
        ...


@runtime_checkable
class Compiler(Protocol):
    """What a backend may offer besides: a faster form of a whole decoder."""

    def compile(self, decoder: Decoder) -> Model:
        """A model with the results of a decoder that was built over this backend, bit for bit."""
        ...
