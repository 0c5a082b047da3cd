"""The native sampler: the steps of `worker.sampler`, with a row's bits its own just the same.

A token differs from that sampler's only where rounding decides: an `exp` or `log` that ends in another bit, or sums in
another order.
"""

from __future__ import annotations

import numpy as np
import torch

from kernels.cpu.ops import CpuOps
from kernels.cpu.sampling import Sampling
from worker.sampler import NO_CHANGES, Changes, Sampled, SamplingColumns
from worker.step import no_floats, no_ints


class NativeSampler:
    """Samples from logits [R, V] float32 on the CPU."""

    def __init__(self, ops: CpuOps) -> None:
        self._ops = ops

    def __call__(self, logits: torch.Tensor, columns: SamplingColumns, changes: Changes = NO_CHANGES) -> Sampled:
        """A token per row."""
        sampling = describe(columns, logits.shape[1])
        self._ops.sample(
            logits, sampling, masked=changes.masked, kept=changes.kept, changed=changes.changed, raw=changes.raw
        )
        return outcome(sampling, columns)


def describe(columns: SamplingColumns, width: int) -> Sampling:
    """The columns as the native library takes them."""
    rows = columns.temperature.size
    if not columns.temperature.any() and not (columns.num_logprobs >= 0).any():
        return Sampling.greedy(rows, width)
    return Sampling(
        rows,
        width,
        temperature=columns.temperature,
        top_p=columns.top_p,
        min_p=columns.min_p,
        seeds=columns.seeds,
        output_index=columns.output_index,
        top_k=columns.top_k,
        num_logprobs=columns.num_logprobs,
    )


def outcome(sampling: Sampling, columns: SamplingColumns) -> Sampled:
    """What the native library has filled in, in memory of its own."""
    finite, tokens = sampling.finite.astype(np.bool_), sampling.tokens.copy()
    if not sampling.asks or not ((asked := columns.num_logprobs[finite]) >= 0).any():
        return Sampled(
            finite=finite,
            tokens=tokens,
            logprobs=no_floats(),
            num_top=no_ints(),
            top_tokens=no_ints(),
            top_logprobs=no_floats(),
        )
    num_top = np.maximum(columns.num_logprobs, 0)
    has_token = np.repeat(finite, num_top)
    return Sampled(
        finite=finite,
        tokens=tokens,
        logprobs=sampling.logprobs[finite],
        num_top=num_top[finite] if (asked > 0).any() else no_ints(),
        top_tokens=sampling.top_tokens[has_token],
        top_logprobs=sampling.top_logprobs[has_token],
    )
