"""A linear layer whose weight is packed once, at load, into the panels that the native kernel reads."""

from __future__ import annotations

import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.weight_memory import WeightMemory

_WEIGHT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}  # WeightType in linear.h
STORAGE_DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear:
    """y = x @ weight.T + bias. The bits of an output row depend on its row of x alone, not on other rows or threads.

    weight [N, K] float32 or bfloat16 keeps its dtype in the packed copy, N rounded up to a panel's columns and K to an
    even number, except that all instruction sets but generic keep bfloat16 in 12 bits where they are enough; bias [N]
    is kept in float32. With scales [N], weight is int8 and stands for weight * scales[:, None]. Over bfloat16 and int8
    weights, x86-64-v4-bf16 rounds x to bfloat16 (see dot_product.h), x86-64-v4 and x86-64-v3 to integers with a scale
    for every 192 (see integer_product.h); generic keeps it in float32, as all do over weights in float32.
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
        self,
        library: NativeLibrary,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        scales: torch.Tensor | None = None,
        memory: WeightMemory,
        num_threads: int,
    ) -> None:
        allowed = STORAGE_DTYPES if scales is None else (torch.int8,)
        if weight.dim() != 2 or weight.numel() == 0 or weight.dtype not in allowed:
            dtypes = " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
            raise ValueError(
                f"linear: weight must be [N, K] in {dtypes}, not empty, got {list(weight.shape)} in {weight.dtype}"
            )
        self.out_features, self.in_features = weight.shape
        for name, vector in (("bias", bias), ("scales", scales)):
            if vector is not None and vector.shape != (self.out_features,):
                raise ValueError(f"linear: {name} must be [{self.out_features}], got {list(vector.shape)}")
        weight = weight.contiguous()
        if scales is not None:
            scales = scales.float().contiguous()
        weight_type = _WEIGHT_TYPES[weight.dtype]
        stored = torch.empty(2, dtype=torch.int64)
        library.linear_storage(
            weight.data_ptr(), weight_type, self.out_features, self.in_features, num_threads, stored.data_ptr()
        )
        stored_type, num_bytes = stored.tolist()
        self._packed = memory.take(num_bytes)
        self._bias = None if bias is None else bias.float().contiguous().clone()
        # LinearWeights in linear.h, field by field; valid as long as this object lives.
        self.description = (
            self._packed.data_ptr(),
            stored_type,
            0 if self._bias is None else self._bias.data_ptr(),
            self.out_features,
            self.in_features,
        )
        self._linear = library.linear
        self._num_threads = num_threads
        library.pack_linear(
            weight.data_ptr(),
            0 if scales is None else scales.data_ptr(),
            self._packed.data_ptr(),
            stored_type,
            self.out_features,
            self.in_features,
            num_threads,
        )

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What the layer keeps in memory."""
        return (self._packed,) if self._bias is None else (self._packed, self._bias)

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
