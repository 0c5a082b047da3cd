"""The backend for CUDA GPUs: Triton kernels, torch's own matrix products. Activations and weights share one dtype.

Under Triton's interpreter (TRITON_INTERPRET=1 when the process starts) it runs on a CPU too, at a speed for tests only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton

from kernels.triton.copy_blocks import copy_blocks
from kernels.triton.paged_attention import paged_attention
from kernels.triton.rms_norm import add_rms_norm, rms_norm
from kernels.triton.rope_and_cache import rope_and_cache
from kernels.triton.silu_and_mul import silu_and_mul
from worker.backend.block_copies import Blocks, copy_one_by_one
from worker.backend.torch_backend import TorchLinear
from worker.device_io import make_io


class TritonBackend:
    """Satisfies worker.backend.protocol.Backend, whose comments give the contract of each op."""

    name = "triton"
    head_dim_multiple = 2
    fp8_kv_cache = True

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self.activation_dtype = dtype
        self._io = make_io(device)

    def prepare_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> TorchLinear:
        return TorchLinear(weight, bias)

    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    rope_and_cache = staticmethod(rope_and_cache)
    attention = staticmethod(paged_attention)
    silu_and_mul = staticmethod(silu_and_mul)

    def copy_blocks(
        self, from_blocks: torch.Tensor, sources: Blocks, to_blocks: torch.Tensor, destinations: Blocks
    ) -> None:
        """One launch within the device. To and from the host the copy engines work beside the kernels."""
        if from_blocks.device != to_blocks.device:
            copy_one_by_one(from_blocks, sources, to_blocks, destinations)
            return
        pairs = np.stack((sources, destinations), axis=1).astype(np.int64)
        copy_blocks(from_blocks, to_blocks, self._io.upload({"pairs": pairs})["pairs"])

    def describe(self) -> dict[str, Any]:
        """What was chosen, for the log line at start."""
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu, interpreted"
        return {"backend": self.name, "device": where, "triton": triton.__version__}
