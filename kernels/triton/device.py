"""What the launchers need to know of a GPU. Read once per device; a launch only looks it up."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Compute capability as 10 * major + minor, number of multiprocessors (SMs), shared memory that a program may use
    in bytes."""

    capability: int
    num_sms: int
    shared_bytes: int


A100 = Gpu(capability=80, num_sms=108, shared_bytes=163 << 10)
H100 = Gpu(capability=90, num_sms=132, shared_bytes=227 << 10)

_assumed = H100  # of tensors that are on no GPU: Triton's interpreter runs on the CPU, compiling ahead on neither


@contextmanager
def assume(gpu: Gpu) -> Iterator[None]:
    """Within it, launches on tensors that are on no GPU are planned for this one."""
    global _assumed  # noqa: PLW0603 - launchers take no device argument: on a GPU the tensors say it
    before, _assumed = _assumed, gpu
    try:
        yield
    finally:
        _assumed = before


@functools.cache
def _read(index: int) -> Gpu:
    properties: Any = torch.cuda.get_device_properties(index)  # torch's stubs miss a field
    return Gpu(
        capability=10 * properties.major + properties.minor,
        num_sms=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,
    )


def gpu_of(x: torch.Tensor) -> Gpu:
    """The GPU that holds the tensor."""
    return _read(x.get_device()) if x.is_cuda else _assumed
