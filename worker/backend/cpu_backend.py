"""The native CPU backend: activations in float32, weights and KV cache in float32 or bfloat16, those of linear layers
in int8 if asked for. Over bfloat16 and int8 weights, a processor with AVX512-BF16 rounds the input of a linear layer to
bfloat16.

Every op computes a row's result from that row and its sequence alone, in an order that neither the rest of the batch
nor the number of threads changes. With float32 storage that is the exact mode: a sequence's logits are the same bits
alone, beside others, in chunks and after preemption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels.cpu.library import load
from kernels.cpu.ops import HEAD_DIM_MULTIPLE, CpuOps
from worker.backend.block_copies import copy_one_by_one
from worker.backend.native_model import NativeModel

if TYPE_CHECKING:
    from worker.models.decoder import Decoder


class CpuBackend(CpuOps):
    """Satisfies worker.backend.protocol.Backend. Raises kernels.cpu.library.NativeLibraryError without the library."""

    name = "cpu"
    device = torch.device("cpu")
    activation_dtype = torch.float32
    head_dim_multiple = HEAD_DIM_MULTIPLE
    fp8_kv_cache = False
    copy_blocks = staticmethod(copy_one_by_one)

    def __init__(self, *, num_threads: int, instruction_set: str | None = None, quantization: str = "none") -> None:
        """instruction_set: one of `kernels.cpu.library.available_instruction_sets()`, the best by default.
        quantization: one of `kernels.cpu.ops.QUANTIZATIONS`, of the linear layers' weights."""
        super().__init__(load(instruction_set), num_threads=num_threads, quantization=quantization)
        self._threads = num_threads

    def compile(self, decoder: Decoder) -> NativeModel:
        """See worker.backend.protocol.Compiler."""
        return NativeModel(self, decoder)

    def describe(self) -> dict[str, Any]:
        """What was chosen and detected, for the log line at start."""
        return {"backend": self.name, "instruction_set": self.instruction_set, "threads": self._threads}
