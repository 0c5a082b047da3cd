"""A linear layer whose weight is packed once, at load, into the panels that the native kernel reads."""

from __future__ import annotations

import torch

from kernels.cpu.library import NativeLibrary

PANEL = 32  # output columns per panel, kPanel in linear.cpp
STORAGE_DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear:
    """y = x @ weight.T + bias. The bits of an output row depend on its row of x alone, not on other rows or threads.

    weight [N, K] float32 or bfloat16 keeps its dtype in the packed copy, N rounded up to 32 and K to 2; bias [N] is
    kept in float32. Over bfloat16 weights, the instruction set x86-64-v4-bf16 rounds x to bfloat16 (see dot_linear.h),
    the others keep it in float32.
    """

    __slots__ = (
        "_bias",
        "_linear",
        "_num_threads",
        "_packed",
        "description",
        "in_features",
        "out_features",
    )

    def __init__(
        self, library: NativeLibrary, weight: torch.Tensor, bias: torch.Tensor | None, *, num_threads: int
    ) -> None:
        if weight.dim() != 2 or weight.dtype not in STORAGE_DTYPES:
            raise ValueError(
                f"linear: weight must be [N, K] in float32 or bfloat16, got {list(weight.shape)} in {weight.dtype}"
            )
        self.out_features, self.in_features = weight.shape
        if bias is not None and bias.shape != (self.out_features,):
            raise ValueError(f"linear: bias must be [{self.out_features}], got {list(bias.shape)}")
        weight = weight.contiguous()
        panels = -(-self.out_features // PANEL)
        depth = self.in_features + self.in_features % 2
        self._packed = torch.empty(panels * depth * PANEL, dtype=weight.dtype)
        self._bias = None if bias is None else bias.float().contiguous().clone()
        # LinearWeights in linear.h, field by field; valid as long as this object lives.
        self.description = (
            self._packed.data_ptr(),
            int(weight.dtype is torch.bfloat16),
            0 if self._bias is None else self._bias.data_ptr(),
            self.out_features,
            self.in_features,
        )
        self._linear = library.linear
        self._num_threads = num_threads
        library.pack_linear(
            weight.data_ptr(),
            self._packed.data_ptr(),
            weight.dtype is torch.bfloat16,
            self.out_features,
            self.in_features,
            num_threads,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, K] float32, rows contiguous -> [T, N] float32."""
        rows, columns = x.shape
        row_stride, element_stride = x.stride()
        if columns != self.in_features or x.dtype is not torch.float32 or element_stride != 1:
            raise ValueError(
                f"linear: x must be [T, {self.in_features}] in float32 with contiguous rows, "
                f"got {list(x.shape)} in {x.dtype} with strides {x.stride()}"
            )
        y = torch.empty((rows, self.out_features))
        status = self._linear(
            *self.description,
            x.data_ptr(),
            row_stride,
            y.data_ptr(),
            self.out_features,
            rows,
            self._num_threads,
        )
        if status:
            raise MemoryError("linear: no memory for the rounded activations")
        return y
