"""A decoder in its native form: one call of the native library per step instead of one per op, with the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.cpu.native_decoder import DecoderParts, LayerParts, NativeDecoder, PagedCaches
from kernels.cpu.ops import CpuOps
from kernels.cpu.packed_linear import PackedLinear
from kernels.cpu.sampling import Sampling
from worker.backend import native_sampler
from worker.input_batch import InputBatch
from worker.kv_cache import KVCache
from worker.models.model import Change
from worker.sampler import Sampled, SamplingColumns

if TYPE_CHECKING:
    from worker.backend.protocol import Linear
    from worker.models.decoder import Decoder, Layer


class NativeModel:
    """Satisfies worker.models.model.SamplingModel. It keeps the decoder's tensors, not the decoder."""

    def __init__(self, ops: CpuOps, decoder: Decoder) -> None:
        """The decoder was built over `ops`."""
        self._native = NativeDecoder(ops.library, _parts(decoder), num_threads=ops.num_threads)
        self._bound: tuple[KVCache, PagedCaches] | None = None
        self._sampling: tuple[SamplingColumns, Sampling] | None = None
        self._logits = torch.empty((0, self._native.vocab_size))
        self._lm_head = _packed(decoder.lm_head)
        self.sample_logits = native_sampler.NativeSampler(ops)
        """See worker.models.model.SamplingModel."""

    def forward(self, batch: InputBatch, kv_cache: KVCache) -> torch.Tensor:
        """See worker.models.model.Model."""
        return self._native.forward(batch, self._caches(kv_cache))

    def hidden_states(self, batch: InputBatch, kv_cache: KVCache) -> torch.Tensor:
        """See worker.models.model.Model."""
        return self._native.hidden_states(batch, self._caches(kv_cache))

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """See worker.models.model.Model."""
        return self._lm_head(hidden)

    def sample(
        self, batch: InputBatch, kv_cache: KVCache, columns: SamplingColumns, change: Change | None = None
    ) -> Sampled:
        """See worker.models.model.SamplingModel."""
        if change is not None:
            rows = batch.logits_indices.numel()
            if self._logits.shape[0] < rows:  # kept: fresh memory for so much would cost as much as sampling does
                self._logits = torch.empty((rows, self._native.vocab_size))
            logits = self._native.forward(batch, self._caches(kv_cache), out=self._logits[:rows])
            return self.sample_logits(logits, columns, change(logits))
        if self._sampling is None or self._sampling[0] is not columns:
            self._sampling = columns, native_sampler.describe(columns, self._native.vocab_size)
        sampling = self._sampling[1]
        self._native.sample(batch, self._caches(kv_cache), sampling)
        return native_sampler.outcome(sampling, columns)

    def _caches(self, kv_cache: KVCache) -> PagedCaches:
        if self._bound is None or self._bound[0] is not kv_cache:
            self._bound = kv_cache, PagedCaches(kv_cache.keys, kv_cache.values)
        return self._bound[1]


def _parts(decoder: Decoder) -> DecoderParts:
    config = decoder.config
    return DecoderParts(
        query_heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        scale=config.attention_scale,
        window=config.sliding_window,
        soft_cap=0.0,
        embedding=decoder.embedding,
        cos_sin=decoder.cos_sin,
        layers=[_layer_parts(layer) for layer in decoder.layers],
        final_norm=decoder.final_norm,
        lm_head=_packed(decoder.lm_head),
    )


def _layer_parts(layer: Layer) -> LayerParts:
    return LayerParts(
        input_norm=layer.input_norm,
        qkv=_packed(layer.qkv),
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        output=_packed(layer.output),
        post_attention_norm=layer.post_attention_norm,
        gate_up=_packed(layer.gate_up),
        down=_packed(layer.down),
    )


def _packed(linear: Linear) -> PackedLinear:
    assert isinstance(linear, PackedLinear)  # what CpuOps prepares
    return linear
