"""The backend in plain torch, for any device: the reference that the others are compared with.

Matrix products and attention are torch's own, batched; the rest are the kernels' references. Activations, weights and
KV cache share one dtype.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernels import paged_attention_torch, rms_norm_ref, rotary_ref, silu_and_mul_ref
from worker.backend.block_copies import copy_one_by_one


class TorchLinear:
    """Keeps the tensors as they are; a projection tied to the embeddings shares their memory."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self._weight,) if self._bias is None else (self._weight, self._bias)


class TorchBackend:
    """Satisfies worker.backend.protocol.Backend, whose comments give the contract of each op."""

    name = "torch"
    head_dim_multiple = 1
    fp8_kv_cache = True

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self.activation_dtype = dtype

    def prepare_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> TorchLinear:
        return TorchLinear(weight, bias)

    rms_norm = staticmethod(rms_norm_ref.rms_norm)
    add_rms_norm = staticmethod(rms_norm_ref.add_rms_norm)
    rope_and_cache = staticmethod(rotary_ref.rope_and_cache)
    attention = staticmethod(paged_attention_torch.paged_attention)
    silu_and_mul = staticmethod(silu_and_mul_ref.silu_and_mul)
    copy_blocks = staticmethod(copy_one_by_one)

    def describe(self) -> dict[str, Any]:
        """What was chosen, for the log line at start."""
        if self.device.type == "cuda":
            return {"backend": self.name, "device": torch.cuda.get_device_name(self.device)}
        return {"backend": self.name, "device": str(self.device), "threads": torch.get_num_threads()}
