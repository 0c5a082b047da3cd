"""Builds the native CPU ops: the one build script, for `make native`, the wheel and editable installs alike.

    python -m kernels.cpu.build

Every op is compiled once per instruction set into one shared library, which the loader dispatches at run time, so a
library built on one machine runs on another of the same architecture. The hash of all sources and flags is embedded;
an up-to-date library is left alone. Standard library only: it also runs inside a wheel build.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
LIBRARY = DIRECTORY / "liboctavo_cpu.so"
COMPILER = "g++"
OPS = ("decoder_step", "linear", "paged_attention", "rms_norm", "rotary", "sample", "silu_and_mul")

# -ffp-contract=off: the sources say where a multiply-add is fused, the compiler never decides (exact mode rests on it).
# -fopenmp links the libgomp that torch loads too; never -ffast-math, which would set flush-to-zero for the process.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *("-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"),
)
# Name of the instruction set -> (suffix of its symbols, flags); the best first.
X86_INSTRUCTION_SETS = {
    "x86-64-v4-bf16": ("v4_bf16", ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mprefer-vector-width=512")),
    "x86-64-v4": ("v4", ("-march=x86-64-v4", "-mprefer-vector-width=512")),
    "x86-64-v3": ("v3", ("-march=x86-64-v3",)),
    "generic": ("generic", ("-march=x86-64",)),
}
OTHER_INSTRUCTION_SETS: dict[str, tuple[str, tuple[str, ...]]] = {"generic": ("generic", ())}

_HASH_MARKER = b"octavo-source-hash:"


class BuildError(Exception):
    """The library could not be built; the message says what to do."""


class CompilerMissingError(BuildError):
    """There is no compiler on the PATH."""


def instruction_sets() -> dict[str, tuple[str, tuple[str, ...]]]:
    """What this machine's architecture is compiled for."""
    return X86_INSTRUCTION_SETS if platform.machine() in ("x86_64", "AMD64") else OTHER_INSTRUCTION_SETS


def source_hash(directory: Path = DIRECTORY) -> str:
    """32 hex digits over every C++ source in `directory`, the flags and the instruction sets."""
    digest = hashlib.sha256(repr((COMPILER, FLAGS, OPS, instruction_sets())).encode())
    for path in sorted([*directory.glob("*.cpp"), *directory.glob("*.h")]):
        content = path.read_bytes()
        digest.update(f"{path.name}:{len(content)}:".encode() + content)
    return digest.hexdigest()[:32]


def library_hash(library: Path) -> str | None:
    """The source hash embedded in a built library, read without loading it; None if there is none."""
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return None
    start = content.find(_HASH_MARKER)
    if start < 0:
        return None
    start += len(_HASH_MARKER)
    return content[start : start + 32].decode("ascii", errors="replace")


def _compile_commands(compiler: str, objects: Path, digest: str) -> list[list[str]]:
    commands = []
    for op in OPS:
        for suffix, flags in instruction_sets().values():
            target = ["-c", str(DIRECTORY / f"{op}.cpp"), "-o", str(objects / f"{op}_{suffix}.o")]
            commands.append([compiler, *FLAGS, *flags, f"-DOCTAVO_ISA={suffix}", *target])
    target = ["-c", str(DIRECTORY / "dispatch.cpp"), "-o", str(objects / "dispatch.o")]
    commands.append([compiler, *FLAGS, f'-DOCTAVO_SOURCE_HASH="{digest}"', *target])
    return commands


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\nfailed with exit status {done.returncode}:\n{done.stderr.strip()}")


def build(library: Path = LIBRARY) -> bool:
    """Builds `library` if it is missing or stale. Returns whether it had to. Raises BuildError."""
    digest = source_hash()
    if library_hash(library) == digest:
        return False
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise CompilerMissingError(
            f"{COMPILER} not found: install it (Debian/Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++) "
            "and run again"
        )
    with tempfile.TemporaryDirectory(prefix="octavo-native-") as folder:
        objects = Path(folder)
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for _ in pool.map(_run, _compile_commands(compiler, objects, digest)):
                pass
        # Linked beside its place and renamed: a process that has the old one mapped keeps it, two builds cannot mix.
        fresh = library.with_name(f".{library.name}.{os.getpid()}")
        try:
            _run([compiler, "-shared", "-fopenmp", "-o", str(fresh), *map(str, sorted(objects.glob("*.o")))])
            fresh.replace(library)
        finally:
            fresh.unlink(missing_ok=True)
    return True


def main() -> int:
    """Builds with one line of progress; a failure is a message and exit status 1."""
    if library_hash(LIBRARY) == source_hash():
        print(f"native CPU ops: {LIBRARY.name} is up to date")
        return 0
    count = len(OPS) * len(instruction_sets()) + 1
    print(f"native CPU ops: compiling {count} files on {os.cpu_count()} cores ...", end="", flush=True)
    started = time.monotonic()
    try:
        build()
    except (BuildError, OSError) as error:
        print(" failed", flush=True)
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f" done in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
