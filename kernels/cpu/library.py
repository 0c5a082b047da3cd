"""Loads the native CPU ops through ctypes, once, for one instruction set.

A library that is missing, built from other sources or asked for an instruction set that this processor lacks is refused
with a `NativeLibraryError` that says what to do. Calls release the GIL. Functions take addresses and sizes unchecked:
only `ops.py` and `packed_linear.py` call them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels.cpu import build

_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float

# The parameters of each entry point, in the order of its C++ definition.
_SIGNATURES = {
    "pack_linear": (*(_POINTER,) * 2, _INT, *(_SIZE,) * 2, _INT),
    "linear": (_POINTER, _SIZE, _POINTER, _INT, *(_POINTER,) * 2, *(_SIZE,) * 3, _INT),
    "rms_norm": (_POINTER, *(_SIZE,) * 3, _POINTER, _INT, _POINTER, _SIZE, _FLOAT, _INT),
    "add_rms_norm": (*(_POINTER,) * 3, _INT, _POINTER, *(_SIZE,) * 2, _FLOAT, _INT),
    "rope_and_cache": (
        *(_POINTER, _SIZE, _SIZE, _POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _POINTER, _SIZE),
        *(*(_POINTER,) * 4, _INT, *(_SIZE,) * 4, _INT),
    ),
    "attention": (
        *(_POINTER, *(_SIZE,) * 3, *(_POINTER,) * 2, _INT, *(_SIZE,) * 4),
        *(*(_POINTER,) * 3, *(_SIZE,) * 3, _FLOAT, _SIZE, _POINTER, _INT),
    ),
    "silu_and_mul": (_POINTER, _SIZE, _POINTER, *(_SIZE,) * 2, _INT),
}


class NativeLibraryError(RuntimeError):
    """The native library cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLibrary:
    """The entry points of one instruction set. Each returns 0, or a status that its launcher explains."""

    instruction_set: str
    pack_linear: Callable[..., int]
    linear: Callable[..., int]
    rms_norm: Callable[..., int]
    add_rms_norm: Callable[..., int]
    rope_and_cache: Callable[..., int]
    attention: Callable[..., int]
    silu_and_mul: Callable[..., int]


_HOW_TO_BUILD = "run `make native` (or `python -m kernels.cpu.build`)"


@functools.cache
def _open(path: Path) -> ctypes.CDLL:
    built_from = build.library_hash(path)
    if built_from is None:
        raise NativeLibraryError(f"{path} is missing or is no library of ours: {_HOW_TO_BUILD}")
    if built_from != build.source_hash():
        raise NativeLibraryError(f"{path} is stale, its sources have changed since it was built: {_HOW_TO_BUILD}")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeLibraryError(f"{path} does not load ({error}): delete it and {_HOW_TO_BUILD}") from error
    library.octavo_supports.argtypes = (ctypes.c_char_p,)
    return library


def available_instruction_sets(path: Path = build.LIBRARY) -> tuple[str, ...]:
    """Those that were compiled and that this processor can run, the best first."""
    library = _open(path)
    return tuple(name for name in build.instruction_sets() if library.octavo_supports(name.encode()))


def instruction_set() -> str:
    """The one that `load()` takes: x86-64-v4 (AVX-512), x86-64-v3 (AVX2 and FMA) or generic."""
    return available_instruction_sets()[0]


@functools.cache
def load(isa: str | None = None, path: Path = build.LIBRARY) -> NativeLibrary:
    """The library for `isa`, or for the best instruction set of this processor. Raises NativeLibraryError."""
    library, available = _open(path), available_instruction_sets(path)
    chosen = available[0] if isa is None else isa
    if chosen not in available:
        raise NativeLibraryError(f"instruction set {chosen!r} cannot run here; available: {', '.join(available)}")
    suffix, _ = build.instruction_sets()[chosen]
    functions = {}
    for op, argtypes in _SIGNATURES.items():
        function = library[f"octavo_{op}_{suffix}"]  # indexing gives an object of our own, unlike attribute access
        function.argtypes = argtypes
        function.restype = _INT
        functions[op] = function
    return NativeLibrary(instruction_set=chosen, **functions)
