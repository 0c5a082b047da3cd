"""Compiling what the launchers would launch, on a machine without a GPU.

`recorded` lets launchers run on tensors without memory (device "meta") and keeps each kernel with its arguments instead
of launching it; `compile_variant` gives those to Triton's compiler as the launch would have, for a GPU of choice, and
reads from the cubin what the assembler allotted.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A kernel with the types of its arguments, its constants, which arguments are multiples of 16, and its options.

    Arguments are known by their place, so that a variant can be sent to another process.
    """

    module: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[int, Any], ...]
    aligned: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def function(self) -> Any:
        return getattr(__import__(self.module, fromlist=[self.kernel]), self.kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Per thread: registers, bytes of stack, where spilled ones go, and instructions in loops that move them there and
    back. Per program: warps, bytes of shared memory. serialized: ptxas, out of registers, has every product of a
    warpgroup wait for the one before."""

    registers: int
    stack: int
    spills_in_loops: int
    warps: int
    shared: int
    serialized: bool


@contextmanager
def recorded() -> Iterator[list[Variant]]:
    """Within it, launches add a variant to the list and do nothing else."""
    variants: list[Variant] = []

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        variants.append(_variant(kernel, args, keywords))

    launch = JITFunction.run
    JITFunction.run = record
    try:
        yield variants
    finally:
        JITFunction.run = launch


def _variant(kernel: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Variant:
    """Specialises arguments as Triton does at launch: None and 1 are constants, multiples of 16 are marked."""
    names = kernel.arg_names
    bound = dict(zip(names, args, strict=False)) | {k: v for k, v in keywords.items() if k in names}
    types, constants, aligned = [], [], []
    for place, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (special and type(value) is int and value == 1):
            types.append((parameter.name, "constexpr"))
            constants.append((place, value))
            continue
        if isinstance(value, torch.Tensor):
            types.append((parameter.name, _POINTERS[value.dtype]))
            aligned.append(place)  # the allocator's addresses are, and so must be all that the launchers slice
        else:
            types.append((parameter.name, "fp32" if isinstance(value, float) else "i32"))
            if isinstance(value, int) and special and value % 16 == 0:
                aligned.append(place)
    return Variant(
        module=kernel.fn.__module__,
        kernel=kernel.fn.__name__,
        signature=tuple(types),
        constants=tuple(constants),
        aligned=tuple(aligned),
        options=tuple(sorted((k, v) for k, v in keywords.items() if k not in names)),
    )


def compile_variant(variant: Variant, capability: int) -> Resources:
    """Compiles for a GPU of that capability, or takes the result from Triton's cache -> what the kernel uses. Raises
    whatever Triton raises where it does not compile."""
    source = ASTSource(
        fn=variant.function,
        signature=dict(variant.signature),
        constexprs={(place,): value for place, value in variant.constants},
        attrs={(place,): [["tt.divisibility", 16]] for place in variant.aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(variant.options))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        registers, stack = _registers_and_stack(file.name)
        instructions = _instructions(file.name)
    metadata = compiled.metadata
    return Resources(
        registers=registers,
        stack=stack,
        spills_in_loops=_spills_in_loops(instructions) if stack else 0,
        warps=metadata.num_warps,
        shared=metadata.shared,
        serialized=_serialized(instructions),
    )


def _registers_and_stack(cubin: str) -> tuple[int, int]:
    text = _cuobjdump("--dump-resource-usage", cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {text!r}")
    return int(found[1]), int(found[2])


def _instructions(cubin: str) -> list[tuple[int, str]]:
    """Addresses and what is there."""
    found = re.findall(r"/\*([0-9a-f]{4,})\*/ +(.*?);", _cuobjdump("-sass", cubin))
    return [(int(address, 16), instruction) for address, instruction in found]


def _serialized(instructions: list[tuple[int, str]]) -> bool:
    """Products of a warpgroup (HGMMA) come in rows of several, then a wait."""
    products = sum("HGMMA" in instruction for _, instruction in instructions)
    waits = sum("WARPGROUP.DEPBAR" in instruction for _, instruction in instructions)
    return 2 * waits > products > 0


def _spills_in_loops(instructions: list[tuple[int, str]]) -> int:
    """Loads from and stores to the stack between a branch backwards and its target."""
    spills, loops = [], []
    for address, instruction in instructions:
        if re.search(r"\b(LDL|STL)\b", instruction):
            spills.append(address)
        branch = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", instruction)
        if branch and int(branch[1], 16) < address:
            loops.append((int(branch[1], 16), address))
    return sum(any(start <= spill <= end for start, end in loops) for spill in spills)


def _cuobjdump(option: str, cubin: str) -> str:
    command = [os.fspath(_CUOBJDUMP), option, cubin]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
