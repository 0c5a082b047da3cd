"""How much of a GPU's memory a step takes, found by running the largest ones.

What the model's weights and the libraries took is read from the device, before and after; what a step takes while it
runs comes from torch's allocator, whose peak it is. The rest, up to the share of the device that the worker may use,
is the KV cache's. On a CPU nothing is profiled: memory there is committed when it is touched, not when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from worker.dummy_step import HEAVIEST, DummyStep
from worker.memory import KVCacheMemoryError, MemoryProfile
from worker.runner import Runner


class Gauge(Protocol):
    """A device's memory, read."""

    def peak_of(self, work: Callable[[], None]) -> int:
        """Bytes that `work` took at its peak, above what was in use before. Raises torch.OutOfMemoryError."""
        ...

    def profile(self, step: int, largest_step: tuple[int, int]) -> MemoryProfile:
        """The readings now, with the largest step's peak, tokens and rows."""
        ...


class MemoryGauge:
    """Reads a GPU's memory. Made before the weights are loaded. Satisfies Gauge."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free_at_start, self._total = torch.cuda.mem_get_info(device)

    def peak_of(self, work: Callable[[], None]) -> int:
        """Of what torch's allocator took from the device: what lies unused between its pieces counts too."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_reserved(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - before

    def profile(self, step: int, largest_step: tuple[int, int]) -> MemoryProfile:
        torch.cuda.empty_cache()
        return MemoryProfile(
            total=self._total,
            free_at_start=self._free_at_start,
            free=torch.cuda.mem_get_info(self._device)[0],
            step=step,
            largest_step=largest_step,
        )


def largest_steps(max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int) -> list[DummyStep]:
    """The steps that may take most memory: the most tokens, in as many rows and in as few as can be."""
    longest = max(1, max_model_len - 1)
    most_rows = min(max_num_seqs, max_num_batched_tokens)
    num_tokens = min(max_num_batched_tokens, most_rows * longest)
    fewest_rows = -(-num_tokens // longest)
    return [
        DummyStep(num_tokens=num_tokens, num_rows=num_rows, sampling=HEAVIEST)
        for num_rows in dict.fromkeys((most_rows, fewest_rows))
    ]


def profile_memory(
    gauge: Gauge, steps: Sequence[DummyStep], make_runner: Callable[[int], Runner], block_size: int, logits_width: int
) -> MemoryProfile:
    """Runs the steps. make_runner: one with a KV cache of so many blocks, which is given back.

    Raises KVCacheMemoryError, naming the flags, if the device runs out of memory.
    """
    largest = steps[0].num_tokens, steps[0].num_rows
    try:
        runner = make_runner(max(step.num_blocks(block_size) for step in steps))
        peak = max(gauge.peak_of(partial(step.run, runner, block_size, logits_width)) for step in steps)
    except torch.OutOfMemoryError as error:
        raise KVCacheMemoryError(
            f"--max-num-batched-tokens {largest[0]} and --max-num-seqs {largest[1]}: a step of that size does not fit "
            "into the device's memory beside the model"
        ) from error
    del runner  # and its KV cache, before the readings
    return gauge.profile(peak, largest)
