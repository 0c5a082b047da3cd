"""Columns that are staged arrive as they were, whatever their types and lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worker.device_io import DeviceIO, HostIO, StagedIO

CPU = torch.device("cpu")


@pytest.fixture(params=[HostIO(), StagedIO(CPU, page_locked=False)], ids=["host", "staged"])
def io(request: pytest.FixtureRequest) -> DeviceIO:
    return request.param


COLUMNS = {
    "odd": np.arange(3, dtype=np.int32),
    "wide": np.arange(5, dtype=np.int64) << 40,
    "empty": np.empty(0, np.int64),
    "table": np.arange(12, dtype=np.int32).reshape(4, 3),
    "fractions": np.array([0.1, -1e30], np.float32),
    "strided": np.arange(20, dtype=np.int32).reshape(4, 5)[:, 2],
    "exact": np.array([1 / 3], np.float64),
}


def test_columns_arrive_as_they_were(io: DeviceIO) -> None:
    arrived = io.upload(COLUMNS)
    assert list(arrived) == list(COLUMNS)
    for name, column in COLUMNS.items():
        assert torch.equal(arrived[name], torch.from_numpy(column)), name
        assert arrived[name].dtype == torch.from_numpy(column).dtype


def test_staged_columns_begin_at_multiples_of_16_bytes() -> None:
    for tensor in StagedIO(CPU, page_locked=False).upload(COLUMNS).values():
        assert tensor.data_ptr() % 16 == 0
        assert tensor.is_contiguous()


def test_what_is_downloaded_is_as_it_was(io: DeviceIO) -> None:
    tensors = [
        torch.arange(6, dtype=torch.int32).reshape(2, 3).T,  # not contiguous
        torch.tensor([0.5, float("nan"), -1e-30]),
        torch.empty((3, 0), dtype=torch.int32),
    ]
    for tensor, array in zip(tensors, io.download(tensors), strict=True):
        assert array.shape == tensor.shape
        assert np.array_equal(array, tensor.numpy(), equal_nan=tensor.is_floating_point())


def test_a_stopwatch_counts_from_its_start_to_its_stop(io: DeviceIO) -> None:
    stopwatch = io.stopwatch()
    sum(range(10_000))
    stopwatch.stop()
    first = stopwatch.nanoseconds()
    assert 0 < first == stopwatch.nanoseconds()
