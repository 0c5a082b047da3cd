"""The decoder of Llama, Mistral, Qwen2 and Qwen3 over a paged KV cache.

One class serves them all; what differs (biases, norms of queries and keys, window, rotary scaling) is in ModelConfig.
Projections that read the same input are fused: q, k and v are one product, gate and up another. The residual stream
is one tensor, updated in place by the norms. Shapes: T tokens of the step, C hidden size, H query heads, G key/value
heads, D head size, I intermediate size, V logits width, R rows that sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from worker.backend.protocol import Backend, Linear
from worker.input_batch import InputBatch
from worker.kv_cache import KVCache
from worker.models.config import ModelConfig
from worker.models.rope import cos_sin_table
from worker.models.weights import EMBEDDING, FINAL_NORM, LM_HEAD, WeightReader


class _Builder:
    """Reads parameters and prepares them for the backend, one tensor or fused group at a time."""

    def __init__(self, backend: Backend, weights: WeightReader, dtype: torch.dtype) -> None:
        self._backend = backend
        self._weights = weights
        self._dtype = dtype

    def matrix(self, names: Sequence[str]) -> torch.Tensor:
        """Tensors of equal width, stacked along their rows: [sum of rows, columns] in the storage dtype."""
        return self._stacked(names, self._dtype)

    def vector(self, *names: str) -> torch.Tensor:
        """Norm weights or biases, stacked: of the activations' dtype, for they meet activations element by element."""
        return self._stacked(names, self._backend.activation_dtype)

    def linear(self, modules: Sequence[str], bias: bool) -> Linear:
        weight = self.matrix([f"{module}.weight" for module in modules])
        return self._backend.prepare_linear(weight, self.vector(*(f"{m}.bias" for m in modules)) if bias else None)

    def _stacked(self, names: Sequence[str], dtype: torch.dtype) -> torch.Tensor:
        shapes = [self._weights.shapes[name] for name in names]
        rows = [shape[0] for shape in shapes]
        stacked = torch.empty((sum(rows), *shapes[0][1:]), dtype=dtype, device=self._backend.device)
        for name, part in zip(names, stacked.split(rows), strict=True):
            self._weights.read(name, part)
        return stacked


class Layer:
    """Attention and MLP of one layer, each behind its norm.

    input_norm, post_attention_norm [C]; q_norm and k_norm [D] or None; qkv [C -> (H + 2 G) D], output [H D -> C],
    gate_up [C -> 2 I] and down [I -> C] prepared by the backend.
    """

    def __init__(self, index: int, config: ModelConfig, backend: Backend, build: _Builder) -> None:
        self._index = index
        self._config = config
        self._backend = backend
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self.input_norm = build.vector(f"{prefix}.input_layernorm.weight")
        self.qkv = build.linear([f"{attention}.{part}_proj" for part in "qkv"], bias=config.qkv_bias)
        self.q_norm = build.vector(f"{attention}.q_norm.weight") if config.qk_norm else None
        self.k_norm = build.vector(f"{attention}.k_norm.weight") if config.qk_norm else None
        self.output = build.linear([f"{attention}.o_proj"], bias=config.output_bias)
        self.post_attention_norm = build.vector(f"{prefix}.post_attention_layernorm.weight")
        self.gate_up = build.linear([f"{mlp}.gate_proj", f"{mlp}.up_proj"], bias=False)
        self.down = build.linear([f"{mlp}.down_proj"], bias=False)

    def tensors(self) -> list[torch.Tensor]:
        norms = (self.input_norm, self.q_norm, self.k_norm, self.post_attention_norm)
        linears = (self.qkv, self.output, self.gate_up, self.down)
        return [
            *(norm for norm in norms if norm is not None),
            *(tensor for linear in linears for tensor in linear.tensors()),
        ]

    def forward(
        self,
        x: torch.Tensor | None,
        residual: torch.Tensor,
        cos_sin: torch.Tensor,
        batch: InputBatch,
        kv_cache: KVCache,
    ) -> torch.Tensor:
        """x [T, C] is the layer before's output, not yet in residual [T, C]; None in the first layer. -> [T, C]."""
        backend, eps = self._backend, self._config.rms_norm_eps
        if x is None:
            x = backend.rms_norm(residual, self.input_norm, eps)
        else:
            x = backend.add_rms_norm(x, residual, self.input_norm, eps)
        x = self._attend(x, cos_sin, batch, kv_cache)
        x = backend.add_rms_norm(x, residual, self.post_attention_norm, eps)
        return self.down(backend.silu_and_mul(self.gate_up(x)))

    def _attend(self, x: torch.Tensor, cos_sin: torch.Tensor, batch: InputBatch, kv_cache: KVCache) -> torch.Tensor:
        config, backend = self._config, self._backend
        tokens = x.shape[0]
        qkv = self.qkv(x)  # [T, (H + 2 G) D]
        q, k, v = (
            part.view(tokens, -1, config.head_dim)  # views of the fused projection
            for part in qkv.split((config.q_size, config.kv_size, config.kv_size), dim=1)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q = backend.rms_norm(q, self.q_norm, config.rms_norm_eps)
            k = backend.rms_norm(k, self.k_norm, config.rms_norm_eps)
        keys, values = kv_cache.keys[self._index], kv_cache.values[self._index]
        k_scale, v_scale = kv_cache.key_scales[self._index], kv_cache.value_scales[self._index]
        backend.rope_and_cache(q, k, v, cos_sin, batch.positions, keys, values, batch.slot_mapping, k_scale, v_scale)
        attended = backend.attention(
            q,
            keys,
            values,
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_tables,
            config.attention_scale,
            config.sliding_window,
            k_scale=k_scale,
            v_scale=v_scale,
        )  # [T, H, D]
        return self.output(attended.view(tokens, config.q_size))


class Decoder:
    """A loaded model: embeddings, layers and vocabulary projection, all on the backend's device."""

    def __init__(self, config: ModelConfig, backend: Backend, weights: WeightReader, dtype: torch.dtype) -> None:
        """Reads every tensor of `weight_shapes(config)` once, in the model's order; dtype is that of the matrices."""
        self.config = config
        self._backend = backend
        build = _Builder(backend, weights, dtype)
        self.embedding = build.matrix([EMBEDDING])  # [V, C]
        self.layers = [Layer(index, config, backend, build) for index in range(config.num_layers)]
        self.final_norm = build.vector(FINAL_NORM)
        head = self.embedding if config.tie_embeddings else build.matrix([LM_HEAD])
        self.lm_head = backend.prepare_linear(head, None)
        self.cos_sin = cos_sin_table(config.rope, config.max_positions).to(backend.device)

    @property
    def weight_bytes(self) -> int:
        """Memory that the parameters take, what is shared counted once."""
        tensors = [self.embedding, self.final_norm, *self.lm_head.tensors()]
        for layer in self.layers:
            tensors += layer.tensors()
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())

    def forward(self, batch: InputBatch, kv_cache: KVCache) -> torch.Tensor:
        """Computes the step's tokens, writing their keys and values to the cache. -> logits [R, V] float32 of
        batch.logits_indices, in their order; [0, V] if there are none."""
        return self.project(self.hidden_states(batch, kv_cache))

    @torch.inference_mode()
    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [r, C], rows of `hidden_states` -> logits [r, V] float32."""
        if hidden.shape[0] == 0:
            return torch.empty((0, self.config.vocab_size), dtype=torch.float32, device=hidden.device)
        return self.lm_head(hidden).to(torch.float32)

    @torch.inference_mode()
    def hidden_states(self, batch: InputBatch, kv_cache: KVCache) -> torch.Tensor:
        """`forward` up to the vocabulary projection. -> [R, C]"""
        residual = F.embedding(batch.token_ids, self.embedding).to(self._backend.activation_dtype)  # [T, C]
        x = None
        for layer in self.layers:
            x = layer.forward(x, residual, self.cos_sin, batch, kv_cache)
        assert x is not None  # a model has at least one layer
        wanted = batch.logits_indices
        if wanted.numel() == 0:
            return x[:0]
        return self._backend.add_rms_norm(x[wanted], residual[wanted], self.final_norm, self.config.rms_norm_eps)
