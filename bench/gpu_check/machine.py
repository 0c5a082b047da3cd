"""What the figures were measured on, and the packages that a part needs and that may be missing here."""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "triton", "transformers", "grpcio", "protobuf", "numpy", "pytest")

_OF_SERVICES = (
    "grpc",
    "grpc_health",
    "grpc_reflection",
    "grpc_status",
    "google.protobuf",
    "google.rpc",
    "structlog",
    "prometheus_client",
    "llguidance",
    "gguf",
    "yaml",
    "tokenizers",
    "jinja2",
    "uvloop",
    "huggingface_hub",
    "safetensors",
    "transformers",
)

_LEAST = {"grpcio": (1, 85, 1), "protobuf": (7, 35, 1)}
"""The versions that the generated stubs insist on."""


def describe(dry_run: bool) -> dict[str, Any]:
    """Card, versions, date."""
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "card": "none: a dry run on the CPU, whose figures mean nothing",
    }
    found |= {package: version(package) for package in _PACKAGES}
    if not dry_run:
        import torch

        free, total = torch.cuda.mem_get_info()
        found |= {
            "card": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "memory_bytes": total,
            "free_bytes": free,
        }
    return found


def missing_for_services() -> list[str]:
    """Modules and versions that the scheduler, the worker or the client lack here."""
    missing = [module for module in _OF_SERVICES if not _has(module)]
    for package, least in _LEAST.items():
        found = version(package)
        if found is not None and tuple(int(part) for part in re.findall(r"\d+", found)[:3]) < least:
            missing.append(f"{package} {'.'.join(map(str, least))} (this is {found})")
    return missing


def install(wheels: Path, target: Path) -> str:
    """Installs the wheels of a folder into another, without network, for this process and its children to come.
    -> an error, empty if all went well."""
    files = sorted(str(wheel) for wheel in wheels.glob("*.whl"))
    if not files:
        return f"{wheels} holds no wheels"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(target), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"pip's status {done.returncode}"])[-1]
    sys.path.insert(0, str(target))
    importlib.invalidate_caches()
    return ""


def version(package: str) -> str | None:
    """Of an installed distribution, None if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its parent
        return False
