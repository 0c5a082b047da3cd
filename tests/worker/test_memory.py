"""How many KV cache blocks the flags and the memory give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from worker.cgroup import memory_headroom
from worker.kv_cache import KVCacheSpec
from worker.memory import KVCacheMemoryError, available_memory, num_host_blocks, num_kv_blocks

CPU = torch.device("cpu")
SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=8, block_size=16, dtype=torch.float32)  # 4096 bytes per block
HUGE = KVCacheSpec(num_layers=1000, num_kv_heads=1000, head_dim=1000, block_size=1000, dtype=torch.float32)  # 8 TB


def blocks(
    spec: KVCacheSpec = SPEC, override: int | None = None, num_bytes: int | None = None, fraction: float = 0.5
) -> int:
    return num_kv_blocks(
        spec,
        CPU,
        num_gpu_blocks_override=override,
        kv_cache_memory_bytes=num_bytes,
        gpu_memory_utilization=fraction,
    )


def test_the_override_goes_before_bytes_and_bytes_before_the_fraction() -> None:
    assert blocks(override=7, num_bytes=1 << 20) == 7
    assert blocks(num_bytes=(1 << 20) + 4095) == 256
    available = available_memory(CPU) // 4096
    assert 0.2 * available < blocks(fraction=0.5) < 0.8 * available  # other processes come and go


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"override": 0}, "--num-gpu-blocks-override is 0, must be at least 1"),
        ({"spec": HUGE, "override": 1}, r"--num-gpu-blocks-override 1 needs 7450\.58 GiB .* are available"),
        ({"num_bytes": 4095}, "--kv-cache-memory-bytes 4095 holds no KV cache block; one takes 4096 bytes"),
        ({"num_bytes": 1 << 60}, "--kv-cache-memory-bytes 1152921504606846976 is more than the .* available"),
        ({"fraction": 0.0}, r"--gpu-memory-utilization is 0\.0, must be in \(0, 1\]"),
        ({"fraction": 1.1}, r"--gpu-memory-utilization is 1\.1, must be in \(0, 1\]"),
        ({"spec": HUGE}, r"--gpu-memory-utilization 0\.5 of .* bytes available holds no KV cache block"),
    ],
)
def test_errors_name_flag_and_figures(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(KVCacheMemoryError, match=message):
        blocks(**arguments)  # type: ignore[arg-type]


def test_swap_space_is_a_quarter_of_the_kv_cache_by_default() -> None:
    assert num_host_blocks(SPEC, CPU, 64, None) == 16
    assert num_host_blocks(SPEC, CPU, 3, None) == 0


def test_swap_space_is_by_default_at_most_a_quarter_of_what_the_kv_cache_leaves_of_host_memory() -> None:
    available = available_memory(CPU) // 4096
    kv_cache = available * 9 // 10  # leaves a tenth; other processes come and go
    assert 0 <= num_host_blocks(SPEC, CPU, kv_cache, None) < available // 20
    assert num_host_blocks(SPEC, CPU, 2 * available, None) == 0
    # A GPU's KV cache takes nothing of host memory.
    on_gpu = num_host_blocks(SPEC, torch.device("cuda"), 100 * available, None)
    assert available // 8 < on_gpu < available // 2


def test_swap_space_can_be_given() -> None:
    assert num_host_blocks(SPEC, CPU, 64, 0) == 0
    assert num_host_blocks(SPEC, CPU, 64, 4096) == 1
    assert num_host_blocks(SPEC, CPU, 64, (1 << 20) + 4095) == 256


@pytest.mark.parametrize(
    ("num_blocks", "swap_space", "message"),
    [
        (64, 1 << 60, r"--swap-space 1152921504606846976 is more than the \d+ bytes of host memory \(\d+\.\d\d GiB\)"),
        (1 << 40, 4096, r"--swap-space 4096 is more than the 0 bytes of host memory"),
        (64, 4, r"--swap-space 4 \(bytes, unless a unit is given as in 4GiB\) holds no KV cache block; one takes 4096"),
    ],
)
def test_errors_of_swap_space_name_the_figures(num_blocks: int, swap_space: int, message: str) -> None:
    with pytest.raises(KVCacheMemoryError, match=message):
        num_host_blocks(SPEC, CPU, num_blocks, swap_space)


def group(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    membership, mount = tmp_path / "cgroup", tmp_path / "mount"
    membership.write_text("0::/pod/container\n")
    stat = "anon 5\ninactive_file 300\n"
    group(mount / "pod" / "container", memory__max="max\n", memory__current="900\n", memory__stat=stat)
    assert memory_headroom(membership, mount) is None
    group(mount / "pod", memory__max="1000\n", memory__current="900\n", memory__stat=stat)
    assert memory_headroom(membership, mount) == 400  # the page cache can be dropped
    group(mount, memory__max="500\n", memory__current="900\n", memory__stat=stat)
    assert memory_headroom(membership, mount) == 0


def test_version_1_groups(tmp_path: Path) -> None:
    membership, mount = tmp_path / "cgroup", tmp_path / "mount"
    membership.write_text("5:cpu,cpuacct:/box\n4:memory:/box\n")
    group(
        mount / "memory" / "box",
        memory__limit_in_bytes="1000\n",
        memory__usage_in_bytes="600\n",
        memory__stat="inactive_file 0\ntotal_inactive_file 100\n",
    )
    assert memory_headroom(membership, mount) == 500


def test_no_groups(tmp_path: Path) -> None:
    assert memory_headroom(tmp_path / "none", tmp_path) is None
