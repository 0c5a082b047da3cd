"""Every test runs on memory poisoned with NaN; those of a native op, for each instruction set of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.cpu import build, library
from kernels.cpu.ops import CpuOps


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """torch.empty gives NaN, so that an output nobody wrote cannot pass for a result."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(20)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Two pools of spinning threads on two cores would wait for each other; the references are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=list(build.instruction_sets()))
def native(request: pytest.FixtureRequest) -> library.NativeLibrary:
    if request.param not in library.available_instruction_sets():
        pytest.skip(f"this processor has no {request.param}")
    return library.load(request.param)


@pytest.fixture
def ops(native: library.NativeLibrary) -> CpuOps:
    return CpuOps(native, num_threads=2)
