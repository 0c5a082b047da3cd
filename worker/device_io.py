"""What travels between host and device in a step: its columns one way, what was sampled the other.

On a CPU an array is the tensor. On a GPU the columns of an upload travel in one page-locked buffer, by a copy that the
stream puts in order and nobody waits for; a download is one such copy back, and with `wait` at the end of a step it is
the only time that the host waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Columns = Mapping[str, npt.NDArray[Any]]

_ALIGNMENT = 16
"""Bytes. Triton compiles another kernel for pointers that are not multiples of it."""


class Stopwatch(Protocol):
    """The time that the device takes for what was asked of it between two moments."""

    def stop(self) -> None:
        """The second moment."""
        ...

    def nanoseconds(self) -> int:
        """Between the two; may be asked once the device has passed the second."""
        ...


class DeviceIO(Protocol):
    """One device's traffic with the host. Calls are in the order of the device's current stream."""

    device: torch.device
    shares_memory: bool
    """Whether an uploaded tensor is its array, and sees what is written into it later."""

    def upload(self, columns: Columns) -> dict[str, torch.Tensor]:
        """Tensors on the device, of the arrays' shapes and types, to be read only."""
        ...

    def download(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        """Arrays with the tensors' values. Tensors are int32 or float32."""
        ...

    def wait(self) -> None:
        """Returns once the device has done all that it was asked for."""
        ...

    def stopwatch(self) -> Stopwatch:
        """One that runs."""
        ...


class HostIO:
    """The device is the host: nothing is copied. A downloaded array shares its tensor's memory."""

    device = torch.device("cpu")
    shares_memory = True

    def upload(self, columns: Columns) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(column) for name, column in columns.items()}

    def download(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        return [tensor.numpy() for tensor in tensors]

    def wait(self) -> None:
        pass

    def stopwatch(self) -> Stopwatch:
        return _HostStopwatch()


class StagedIO:
    """The device has memory of its own. Staging buffers come from torch's page-locked pool, which hands one out again
    only after the copy that read it. page_locked False is for tests on a machine without a GPU."""

    shares_memory = False

    def __init__(self, device: torch.device, *, page_locked: bool = True) -> None:
        self.device = device
        self._page_locked = page_locked

    def upload(self, columns: Columns) -> dict[str, torch.Tensor]:
        places, size = [], 0
        for column in columns.values():
            places.append(size)
            size += -(-column.nbytes // _ALIGNMENT) * _ALIGNMENT
        staged = self._buffer(size, torch.uint8)
        staging = staged.numpy()
        for place, column in zip(places, columns.values(), strict=True):
            staging[place : place + column.nbytes] = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
        arrived = staged.to(self.device, non_blocking=True)
        tensors = {}
        for place, (name, column) in zip(places, columns.items(), strict=True):
            dtype = torch.from_numpy(np.empty(0, column.dtype)).dtype
            tensors[name] = arrived[place : place + column.nbytes].view(dtype).view(column.shape)
        return tensors

    def download(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        words = torch.cat([tensor.contiguous().view(torch.int32).reshape(-1) for tensor in tensors])
        staged = self._buffer(words.numel(), torch.int32)
        staged.copy_(words, non_blocking=True)
        self.wait()
        arrays, start = [], 0
        arrived = staged.numpy()
        for tensor in tensors:
            column = arrived[start : start + tensor.numel()]
            arrays.append(column.view(_NUMPY[tensor.dtype]).reshape(tensor.shape).copy())
            start += tensor.numel()
        return arrays

    def wait(self) -> None:
        if self.device.type == "cuda":
            # By an event: torch can be told to refuse all other waits, which is how tests find those that nobody meant.
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self.device))
            done.synchronize()

    def stopwatch(self) -> Stopwatch:
        return _EventStopwatch(self.device) if self.device.type == "cuda" else _HostStopwatch()

    def _buffer(self, length: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(length, dtype=dtype, pin_memory=self._page_locked)


def make_io(device: torch.device) -> DeviceIO:
    """The one that fits the device."""
    return HostIO() if device.type == "cpu" else StagedIO(device)


_NUMPY = {torch.int32: np.int32, torch.float32: np.float32}


class _HostStopwatch:
    def __init__(self) -> None:
        self._start = time.perf_counter_ns()
        self._stop = self._start

    def stop(self) -> None:
        self._stop = time.perf_counter_ns()

    def nanoseconds(self) -> int:
        return self._stop - self._start


class _EventStopwatch:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._events[0].record(self._stream)

    def stop(self) -> None:
        self._events[1].record(self._stream)

    def nanoseconds(self) -> int:
        return int(1e6 * self._events[0].elapsed_time(self._events[1]))
