"""`python -m bench.linear`: the CPU's linear layers beside torch's and beside what the machine can do at most.

Every shape of SmolLM2-135M, from one row to 512. Weights rotate over more copies than the caches hold, as a model's
layers do; contenders and floors take turns, and each gets its best time, for what else runs on the machine can only
add to it. A floor is the longer of reading the weights once and of the arithmetic. The table goes to standard output,
every figure, medians too, to bench/results/linear.jsonl.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from bench.machine import machine
from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from kernels.cpu.weight_memory import WeightMemory

_RESULTS = Path("bench/results/linear.jsonl")
_SHAPES = {"qkv": (960, 576), "output": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}
_ROWS = (1, 8, 16, 32, 128, 512)
_STORAGE = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
_COLD_BYTES = 128 << 20
_SECONDS = 0.4
"""Of measuring a contender on a shape at a number of rows, at least; three calls, if that is longer."""

_FLOOR_BYTES = 256 << 20
_FLOOR_STEPS = 200_000


class Floors:
    """Best rates seen so far, by number of threads. They improve as the run goes on."""

    def __init__(self, folder: Path) -> None:
        library = folder / "floors.so"
        source = Path(__file__).with_name("linear_floors.cpp")
        options = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
        subprocess.run(["g++", *options, str(source), "-o", str(library)], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.floor_read.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
        for function in (self._library.floor_fma, self._library.floor_dot, self._library.floor_integer):
            function.argtypes = (ctypes.c_int64, ctypes.c_int)
            function.restype = ctypes.c_double
        self._data = WeightMemory().take(_FLOOR_BYTES).fill_(1)
        self.best: dict[tuple[str, int], float] = {}

    def measure(self, threads: int) -> None:
        def rate(name: str, run: Callable[[], float]) -> None:
            begin = time.perf_counter()
            work = run()
            self.best[name, threads] = max(self.best.get((name, threads), 0.0), work / (time.perf_counter() - begin))

        def read() -> float:
            self._library.floor_read(self._data.data_ptr(), _FLOOR_BYTES, threads)
            return float(_FLOOR_BYTES)

        rate("read", read)
        rate("fma", lambda: float(self._library.floor_fma(_FLOOR_STEPS, threads)))
        rate("dot", lambda: float(self._library.floor_dot(_FLOOR_STEPS, threads)))
        rate("integer", lambda: float(self._library.floor_integer(_FLOOR_STEPS, threads)))

    def seconds(self, storage: str, threads: int, rows: int, n: int, k: int) -> float:
        """The least that a layer can take."""
        best = {name: self.best[name, threads] for name in ("read", "fma", "dot", "integer")}
        other = max(best["dot"], best["integer"]) if storage != "fp32" else 0.0
        bits = 12 if storage == "bf16" and best["integer"] else 8 * _STORAGE[storage].itemsize
        return max(n * k * bits / 8 / best["read"], 2 * rows * n * k / max(best["fma"], other))


def main() -> None:
    setting = _setting()
    print(" ".join(f"{name}={value}" for name, value in setting.items()))
    _RESULTS.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        floors = Floors(Path(folder))
        for threads in (2, 1):
            for name, (n, k) in _SHAPES.items():
                rows += list(_measure(floors, threads, name, n, k))
        for row in rows:
            for storage in _STORAGE:
                floor = floors.seconds(storage, row["threads"], row["rows"], row["n"], row["k"])
                row[f"{storage}_floor_us"] = 1e6 * floor
    rates = {f"{name}_g_s_{threads}_threads": rate / 1e9 for (name, threads), rate in floors.best.items()}
    print(" ".join(f"{name}={rate:.1f}" for name, rate in rates.items()))
    _print(rows)
    setting["load_average_after"] = round(os.getloadavg()[0], 2)
    with _RESULTS.open("w") as file:
        for row in rows:
            file.write(json.dumps(setting | rates | row) + "\n")


def _measure(floors: Floors, threads: int, name: str, n: int, k: int) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    contenders = {f"{storage}_ours": _ours(storage, threads, n, k) for storage in _STORAGE}
    contenders |= {f"{storage}_torch": _theirs(storage, n, k) for storage in ("fp32", "bf16")}
    for rows in _ROWS:
        x = torch.randn(rows, k)
        calls = {contender: make(x) for contender, make in contenders.items()}
        times: dict[str, list[float]] = {contender: [] for contender in calls}
        pending = set(calls)
        while pending:
            floors.measure(threads)
            for contender in sorted(pending):
                _turn(calls[contender], times[contender])
                if sum(times[contender]) > _SECONDS and len(times[contender]) >= 3:
                    pending.remove(contender)
        row: dict[str, Any] = {"shape": name, "n": n, "k": k, "threads": threads, "rows": rows}
        for contender, seconds in times.items():
            row[f"{contender}_us"] = 1e6 * min(seconds)
            row[f"{contender}_median_us"] = 1e6 * statistics.median(seconds)
        yield row


def _turn(call: Callable[[int], object], times: list[float]) -> None:
    """A dozen calls, or fewer of slow ones."""
    begin = time.perf_counter()
    for _ in range(12):
        start = time.perf_counter()
        call(len(times))
        times.append(time.perf_counter() - start)
        if time.perf_counter() - begin > _SECONDS / 4:
            return


_Make = Callable[[torch.Tensor], Callable[[int], object]]


def _copies(storage: str, n: int, k: int) -> range:
    return range(max(1, _COLD_BYTES // (n * k * _STORAGE[storage].itemsize)))


def _ours(storage: str, threads: int, n: int, k: int) -> _Make:
    ops = CpuOps(load(), num_threads=threads, quantization="int8" if storage == "int8" else "none")
    dtype = torch.float32 if storage == "int8" else _STORAGE[storage]
    layers = [ops.prepare_linear(torch.randn(n, k).to(dtype), None) for _ in _copies(storage, n, k)]
    return lambda x: lambda turn: layers[turn % len(layers)](x)


def _theirs(storage: str, n: int, k: int) -> _Make:
    """Activations of the weights' type, the fastest for torch."""
    dtype = _STORAGE[storage]
    weights = [torch.randn(n, k).to(dtype) for _ in _copies(storage, n, k)]

    def make(x: torch.Tensor) -> Callable[[int], object]:
        converted = x.to(dtype)
        return lambda turn: F.linear(converted, weights[turn % len(weights)])

    return make


def _print(rows: list[dict[str, Any]]) -> None:
    columns = [f"{storage} {who}" for storage in _STORAGE for who in ("floor", "ours", "torch") if _has(storage, who)]
    print(
        f"\nmicroseconds, the best\n{'threads':>7} {'N x K':>11} {'rows':>4} " + " ".join(f"{c:>11}" for c in columns)
    )
    for row in rows:
        values = [row[f"{column.replace(' ', '_')}_us"] for column in columns]
        size = f"{row['n']}x{row['k']}"
        print(f"{row['threads']:>7} {size:>11} {row['rows']:>4} " + " ".join(f"{value:>11.0f}" for value in values))
    lost = [
        f"{row['n']}x{row['k']} at {row['rows']} rows, {row['threads']} threads, {storage}"
        for row in rows
        for storage in ("fp32", "bf16")
        if row[f"{storage}_ours_us"] > min(row["fp32_torch_us"], row["bf16_torch_us"])
    ]
    print("\ntorch is faster, in either type: " + ("; ".join(lost) if lost else "nowhere"))


def _has(storage: str, who: str) -> bool:
    return storage != "int8" or who != "torch"


def _setting() -> dict[str, Any]:
    return machine() | {
        "instruction_set": load().instruction_set,
        "torch": version("torch"),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
