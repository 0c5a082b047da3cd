"""What machine and what revision a result belongs to, what kept it busy, and what is free on it."""

from __future__ import annotations

import datetime
import os
import platform
import socket
import subprocess
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def machine() -> dict[str, Any]:
    """Date, processor, load and revision, for the head of a result."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _cpuinfo("model name") or platform.processor(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "octavo_commit": commit.stdout.strip(),
    }


def instruction_sets() -> list[str]:
    """Those that matter here, of the ones that the processor has."""
    flags = _cpuinfo("flags").split()
    return [name for name in _INSTRUCTION_SETS if name in flags]


def torch_dtype() -> str:
    """The type of bf16 weights in which torch computes fastest on this processor.

    Without AVX-512 it has no bf16 kernels but the slowest; fp32 holds the same numbers.
    """
    return "bfloat16" if "avx512f" in instruction_sets() else "float32"


def busy_seconds() -> float:
    """CPU seconds that all processors together have spent on any process since boot."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS


def process_seconds(pid: int) -> float:
    """User and system time that a process has spent so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _cpuinfo(field: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(field):
            return line.partition(":")[2].strip()
    return ""
