"""What the native sampler reads and writes: columns of R rows, checked and described once per step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class Sampling:
    """Parameters of R rows and room for what they give. The steps and their order are those of `worker.sampler`.

    tokens [R] int32, 0 where a logit is not finite; finite [R] int32, 1 or 0. Of parameters given, also logprobs [R]
    float32 and, row after row, the max(num_logprobs, 0) most likely tokens: top_tokens int32, top_logprobs float32;
    those of rows that are not finite mean nothing. asks: whether a row wants logprobs.

    It may serve again, with other values in the same columns and results in place of the last ones; but num_logprobs
    stays as it is.
    """

    __slots__ = (
        "_kept",
        "asks",
        "description",
        "finite",
        "logprobs",
        "rows",
        "tokens",
        "top_logprobs",
        "top_tokens",
        "width",
    )

    def __init__(
        self,
        rows: int,
        width: int,
        *,
        temperature: Doubles,
        top_p: Doubles,
        min_p: Doubles,
        seeds: npt.NDArray[np.uint64],
        output_index: npt.NDArray[np.int64],
        top_k: Ints,
        num_logprobs: Ints,
    ) -> None:
        """Columns [rows] over logits of the given width; num_logprobs at most the width, the others as in
        `worker.sampler.SamplingColumns`."""
        inputs = (
            _column("temperature", temperature, rows, np.float64),
            _column("top_p", top_p, rows, np.float64),
            _column("min_p", min_p, rows, np.float64),
            _column("seeds", seeds, rows, np.uint64),
            _column("output_index", output_index, rows, np.int64),
            _column("top_k", top_k, rows, np.int32),
            _column("num_logprobs", num_logprobs, rows, np.int32),
        )
        counts = np.maximum(num_logprobs, 0).astype(np.int64)
        if rows and int(counts.max()) > width:
            raise ValueError(f"sample: num_logprobs must be at most {width}, got {int(counts.max())}")
        ends = np.cumsum(counts)
        num_top = int(ends[-1]) if rows else 0
        self.rows, self.width = rows, width
        self.asks = bool((num_logprobs >= 0).any())
        self.tokens = np.empty(rows, np.int32)
        self.finite = np.empty(rows, np.int32)
        self.logprobs = np.empty(rows, np.float32)
        self.top_tokens = np.empty(num_top, np.int32)
        self.top_logprobs = np.empty(num_top, np.float32)
        outputs = (self.tokens, self.finite, self.logprobs, self.top_tokens, self.top_logprobs)
        self._kept: tuple[npt.NDArray[Any], ...] = (*inputs, ends - counts, *outputs)
        # SamplingColumns in sample.h; valid as long as this object lives.
        self.description = tuple(address(array) for array in self._kept)

    @classmethod
    def greedy(cls, rows: int, width: int) -> Sampling:
        """Every row takes its most likely token, and no logprobs."""
        self = cls.__new__(cls)
        self.rows, self.width, self.asks = rows, width, False
        self.tokens = np.empty(rows, np.int32)
        self.finite = np.empty(rows, np.int32)
        self.logprobs = self.top_logprobs = np.empty(0, np.float32)
        self.top_tokens = np.empty(0, np.int32)
        self._kept = (self.tokens, self.finite)
        self.description = (0, 0, 0, 0, 0, 0, 0, 0, address(self.tokens), address(self.finite), 0, 0, 0)
        return self


NO_SAMPLING = (0,) * 13
"""The description of no columns."""


def address(array: npt.NDArray[Any]) -> int:
    """Where the array's first element lies."""
    return int(array.__array_interface__["data"][0])


def row_addresses(rows: int, some: npt.NDArray[np.int64], first: int, stride: int) -> npt.NDArray[np.int64]:
    """Addresses [rows] of what belongs to each row: that of some begins at `first`, `stride` bytes apart; 0 for the
    others."""
    if some.size and not 0 <= int(some.min()) <= int(some.max()) < rows:
        raise ValueError(f"sample: rows must be within 0..{rows - 1}, got {some.tolist()}")
    addresses = np.zeros(rows, np.int64)
    addresses[some] = first + stride * np.arange(some.size)
    return addresses


def _column(name: str, column: npt.NDArray[Any], rows: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
    if column.shape != (rows,) or column.dtype != dtype or not column.flags.c_contiguous:
        raise ValueError(
            f"sample: {name} must be [{rows}] in {np.dtype(dtype)}, contiguous, got {list(column.shape)} in "
            f"{column.dtype}"
        )
    return column
