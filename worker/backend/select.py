"""Chooses the backend, once, when the worker starts. Nothing else asks what device or instruction set there is."""

from __future__ import annotations

import importlib.util

import torch

from worker.backend.cpu_backend import CpuBackend
from worker.backend.protocol import Backend
from worker.backend.torch_backend import TorchBackend

BACKENDS = ("auto", "cpu", "triton", "torch")


class BackendError(ValueError):
    """The flags ask for a backend that cannot be had."""


def make_backend(
    name: str, dtype: torch.dtype, device: torch.device, num_threads: int, exact: bool, quantization: str = "none"
) -> Backend:
    """The backend that --backend names; "auto" is the native one on a CPU, and on a GPU triton where it is installed,
    else torch.

    dtype is the storage type of weights and KV cache. num_threads sets torch's threads too, for the whole process, and
    does nothing on a GPU. exact asks for results that do not depend on the batch. quantization is how the weights of
    linear layers are kept, "none" or "int8". Raises BackendError naming the flag, and
    kernels.cpu.library.NativeLibraryError saying how to build the library where it is needed and missing.
    """
    if name not in BACKENDS:
        raise BackendError(f"--backend is {name!r}, must be one of {', '.join(BACKENDS)}")
    chosen = name if name != "auto" else automatic(device)
    if chosen == "cpu" and device.type != "cpu":
        raise BackendError(f"--backend cpu does not run on device {device}")
    if exact and (chosen != "cpu" or dtype != torch.float32):
        used = f"{chosen} with {str(dtype).removeprefix('torch.')}"
        raise BackendError(f"--exact needs --backend cpu and --dtype float32, this is {used}")
    if quantization != "none" and (chosen != "cpu" or exact):
        raise BackendError(
            f"--quantization {quantization} needs --backend cpu without --exact, this is {chosen}"
            f"{' with --exact' if exact else ''}"
        )
    if device.type == "cpu":
        torch.set_num_threads(num_threads)
    if chosen == "cpu":
        return CpuBackend(num_threads=num_threads, quantization=quantization)
    if chosen == "triton":
        return _triton(dtype, device)
    return TorchBackend(dtype, device)


def automatic(device: torch.device) -> str:
    """The backend that "auto" is on a device."""
    if device.type == "cpu":
        return "cpu"
    return "triton" if _has_triton() else "torch"


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _triton(dtype: torch.dtype, device: torch.device) -> Backend:
    if not _has_triton():
        raise BackendError("--backend triton needs the package triton, which is not installed")
    import triton

    interpreted = triton.knobs.runtime.interpret  # kernels run in Python, on tensors of the CPU
    if device.type == "cpu" and not interpreted:
        raise BackendError(
            "--backend triton needs a CUDA GPU and --device is cpu; on a CPU it runs under Triton's interpreter alone, "
            "for tests (TRITON_INTERPRET=1)"
        )
    if device.type == "cuda" and interpreted:
        raise BackendError("--backend triton: TRITON_INTERPRET is set, under which kernels do not run on the GPU")
    from worker.backend.triton_backend import TritonBackend

    return TritonBackend(dtype, device)
