"""How many KV cache blocks the worker's memory holds, on the device and, for those swapped out, on the host.

Asked once, after the weights are loaded and before the cache is allocated. On a GPU a profile says what else the worker
takes of its share of the device; on a CPU a fraction of what is free then is the cache's, the rest is for activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from worker.cgroup import memory_headroom
from worker.kv_cache import KVCacheSpec
from worker.sizes import GIB

_CPU = torch.device("cpu")

_GPU_UTILIZATION = 0.9
_HOST_UTILIZATION = 0.5

_SWAP_SHARE = 4
"""Swapped-out blocks take a quarter of the KV cache's size by default: they serve the sequences that do not fit for a
while, and those are far fewer than the ones that run. And at most a quarter of host memory, which others use too."""


class KVCacheMemoryError(ValueError):
    """The flags and the memory there is leave room for no KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """Bytes of a device.

    total: all it has. free_at_start: before the weights were loaded. free: now, with nothing cached by torch's
    allocator. step: what the largest step takes while it runs. largest_step: its tokens and rows.
    """

    total: int
    free_at_start: int
    free: int
    step: int
    largest_step: tuple[int, int]

    def kv_cache_bytes(self, utilization: float) -> int:
        """What is left for the KV cache if the worker uses that fraction of the device, negative if it already uses
        more. Others' use counts only where they leave less than the fraction."""
        return min(int(self.total * utilization) - self._resident, self.free) - self.step

    def describe(self, utilization: float) -> str:
        """For the error where nothing is left."""
        tokens, rows = self.largest_step
        return (
            f"--gpu-memory-utilization {utilization} of {self.total / GIB:.2f} GiB, {self.free / GIB:.2f} GiB free; "
            f"the model has {self._resident / GIB:.2f} GiB, a step of {tokens} tokens and {rows} rows takes "
            f"{self.step / GIB:.2f} GiB (--max-num-batched-tokens, --max-num-seqs)"
        )

    @property
    def _resident(self) -> int:
        return self.free_at_start - self.free


def num_kv_blocks(
    spec: KVCacheSpec,
    device: torch.device,
    *,
    num_gpu_blocks_override: int | None,
    kv_cache_memory_bytes: int | None,
    gpu_memory_utilization: float | None,
    profile: MemoryProfile | None = None,
) -> int:
    """Blocks to allocate: the override, else what fits into the bytes given, else into what the utilization leaves:
    with a profile, of its device, else of available memory. None: 0.9 with a profile, 0.5 without.

    Raises KVCacheMemoryError, naming the flag and the figures, where not one block fits or the override does not.
    """
    available = available_memory(device)
    if num_gpu_blocks_override is not None:
        needed = num_gpu_blocks_override * spec.bytes_per_block
        if num_gpu_blocks_override < 1:
            raise KVCacheMemoryError(f"--num-gpu-blocks-override is {num_gpu_blocks_override}, must be at least 1")
        if needed > available:
            raise KVCacheMemoryError(
                f"--num-gpu-blocks-override {num_gpu_blocks_override} needs {needed / GIB:.2f} GiB "
                f"({spec.bytes_per_block} bytes per block), {available / GIB:.2f} GiB are available"
            )
        return num_gpu_blocks_override
    if kv_cache_memory_bytes is not None:
        if kv_cache_memory_bytes > available:
            raise KVCacheMemoryError(
                f"--kv-cache-memory-bytes {kv_cache_memory_bytes} is more than the {available} bytes available"
            )
        return _blocks_in(kv_cache_memory_bytes, spec, f"--kv-cache-memory-bytes {kv_cache_memory_bytes}")
    utilization = gpu_memory_utilization
    if utilization is None:
        utilization = _HOST_UTILIZATION if profile is None else _GPU_UTILIZATION
    if not 0 < utilization <= 1:
        raise KVCacheMemoryError(f"--gpu-memory-utilization is {utilization}, must be in (0, 1]")
    if profile is not None:
        blocks = profile.kv_cache_bytes(utilization) // spec.bytes_per_block
        if blocks < 1:
            room = f"no room for a KV cache block of {spec.bytes_per_block} bytes"
            raise KVCacheMemoryError(f"{profile.describe(utilization)}: {room}")
        return blocks
    budget = int(available * utilization)
    return _blocks_in(budget, spec, f"--gpu-memory-utilization {utilization} of {available} bytes available")


def num_host_blocks(spec: KVCacheSpec, device: torch.device, num_blocks: int, swap_space: int | None) -> int:
    """Host blocks to allocate beside a KV cache of num_blocks on the device; 0: no swapping.

    swap_space: their bytes; None for a share of the KV cache's and of host memory. Raises KVCacheMemoryError, naming
    the flag and the figures, where that is less than a block and not 0, or more than host memory has left.
    """
    kv_cache_bytes = num_blocks * spec.bytes_per_block
    left = max(0, available_memory(_CPU) - (kv_cache_bytes if device.type == "cpu" else 0))
    if swap_space is None:
        return min(kv_cache_bytes, left) // _SWAP_SHARE // spec.bytes_per_block
    if swap_space > left:
        raise KVCacheMemoryError(
            f"--swap-space {swap_space} is more than the {left} bytes of host memory ({left / GIB:.2f} GiB) that the "
            "KV cache leaves"
        )
    if swap_space == 0:
        return 0
    return _blocks_in(swap_space, spec, f"--swap-space {swap_space} (bytes, unless a unit is given as in 4GiB)")


def available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device: free memory of a GPU; of a CPU what the kernel calls available,
    less where a control group sets a lower limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024  # the file counts in kB
    headroom = memory_headroom()
    return available if headroom is None else min(available, headroom)


def _blocks_in(num_bytes: int, spec: KVCacheSpec, source: str) -> int:
    blocks = num_bytes // spec.bytes_per_block
    if blocks < 1:
        raise KVCacheMemoryError(f"{source} holds no KV cache block; one takes {spec.bytes_per_block} bytes")
    return blocks
