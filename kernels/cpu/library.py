"""Loads the native CPU ops through ctypes, once, for one instruction set.

A library that is missing, built from other sources or asked for an instruction set that this processor lacks is refused
with a `NativeLibraryError` that says what to do. Calls release the GIL. Functions take addresses and sizes unchecked:
only `ops.py`, `packed_linear.py` and `native_decoder.py` call them.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels.cpu import build

# The fields of each entry point's argument struct, in the order of its C++ definition, all 8 bytes wide: q is an
# integer or an address, d a double.
_ARGUMENTS = {
    "linear_storage": "6q",
    "pack_linear": "7q",
    "linear": "11q",
    "rms_norm": "8qdq",
    "add_rms_norm": "7qdq",
    "rope_and_cache": "20q",
    "attention": "17qdqd3q",
    "silu_and_mul": "7q",
    "sample": "20q",
}
_DECODER_STEP = "34q"


class NativeLibraryError(RuntimeError):
    """The native library cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLibrary:
    """The entry points of one instruction set, called with the fields of their argument structs in order.

    Each returns 0, or a status that its launcher explains.
    """

    instruction_set: str
    linear_storage: Callable[..., int]
    pack_linear: Callable[..., int]
    linear: Callable[..., int]
    rms_norm: Callable[..., int]
    add_rms_norm: Callable[..., int]
    rope_and_cache: Callable[..., int]
    attention: Callable[..., int]
    silu_and_mul: Callable[..., int]
    sample: Callable[..., int]
    decoder_step: Callable[..., Callable[[], int]]
    """Prepares the call, which may then be made several times: a step's arguments are many, and seldom change."""


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
    """The one that `load()` takes: x86-64-v4-bf16 (AVX-512 with bfloat16 dot products), x86-64-v4 (AVX-512), x86-64-v3
    (AVX2 and FMA) or generic."""
    return available_instruction_sets()[0]


def _prepared(library: ctypes.CDLL, name: str, fields: str) -> Callable[..., Callable[[], int]]:
    """The entry point as a function of its struct's fields that gives the call of it."""
    function, pack = library[name], struct.Struct(fields).pack
    function.argtypes = (ctypes.c_char_p,)
    return lambda *values: functools.partial(function, pack(*values))


def _bind(library: ctypes.CDLL, name: str, fields: str) -> Callable[..., int]:
    """The entry point as a function of its struct's fields."""
    prepare = _prepared(library, name, fields)
    return lambda *values: prepare(*values)()


@functools.cache
def load(isa: str | None = None, path: Path = build.LIBRARY) -> NativeLibrary:
    """The library for `isa`, or for the best instruction set of this processor. Raises NativeLibraryError."""
    library, available = _open(path), available_instruction_sets(path)
    chosen = available[0] if isa is None else isa
    if chosen not in available:
        raise NativeLibraryError(f"instruction set {chosen!r} cannot run here; available: {', '.join(available)}")
    suffix, _ = build.instruction_sets()[chosen]
    ops = {op: _bind(library, f"octavo_{op}_{suffix}", fields) for op, fields in _ARGUMENTS.items()}
    decoder_step = _prepared(library, f"octavo_decoder_step_{suffix}", _DECODER_STEP)
    return NativeLibrary(instruction_set=chosen, **ops, decoder_step=decoder_step)
