"""What every part of the check is given, and the two ceilings that its figures stand beside."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from bench.gpu_check.rows import Rows, one_line
from bench.gpu_check.sizes import Sizes
from bench.gpu_check.timing import Timer

GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A device, sizes, where the rows go, and how long a part may take."""

    device: torch.device
    sizes: Sizes
    rows: Rows
    budget_s: float
    timer: Timer = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "timer", Timer(self.device, self.sizes.repeats))
        torch.manual_seed(8)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.sizes.dtype)
        return dtype

    def measure(self, measurements: Mapping[str, Callable[[], None]]) -> None:
        """Makes all of them, by name. One that raises is a row and spares the others; raises after the last of them."""
        failed = []
        for name, measurement in measurements.items():
            try:
                measurement()
            except Exception as error:
                traceback.print_exc()
                self.rows.add(name, note=one_line(error))
                failed.append(name)
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(measurements)} measurements: {', '.join(failed)}")

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers on the device. Never zeros: those are multiplied and moved faster than what is real."""
        return torch.randn(shape, device=self.device, dtype=dtype or self.dtype)

    @functools.cached_property
    def copy_rate(self) -> float:
        """Bytes per second, read and written, of a large copy within the device."""
        source = self.random(self.sizes.copy_bytes // self.dtype.itemsize)
        destination = torch.empty_like(source)
        seconds = self.timer.median(lambda: destination.copy_(source))
        return 2 * source.nbytes / seconds

    @functools.cached_property
    def matmul_rate(self) -> float:
        """Operations per second of a large matrix product."""
        size = self.sizes.matmul
        a, b = self.random(size, size), self.random(size, size)
        out = torch.empty_like(a)
        seconds = self.timer.median(lambda: torch.matmul(a, b, out=out))
        return 2 * size**3 / seconds
