"""The native CPU backend: activations in float32, weights and KV cache in float32 or bfloat16. Over bfloat16 weights, a
processor with AVX512-BF16 rounds the input of a linear layer to bfloat16.

Every op computes a row's result from that row and its sequence alone, in an order that neither the rest of the batch
nor the number of threads changes. With float32 storage that is the exact mode: a sequence's logits are the same bits
alone, beside others, in chunks and after preemption.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.cpu.library import load
from kernels.cpu.ops import HEAD_DIM_MULTIPLE, CpuOps


class CpuBackend(CpuOps):
    """Satisfies worker.backend.protocol.Backend. Raises kernels.cpu.library.NativeLibraryError without the library."""

    name = "cpu"
    device = torch.device("cpu")
    activation_dtype = torch.float32
    head_dim_multiple = HEAD_DIM_MULTIPLE

    def __init__(self, *, num_threads: int) -> None:
        super().__init__(load(), num_threads=num_threads)
        self._threads = num_threads

    def describe(self) -> dict[str, Any]:
        """What was chosen and detected, for the log line at start."""
        return {"backend": self.name, "instruction_set": self.instruction_set, "threads": self._threads}
