"""The native library's way from sources to the loader: staleness, a missing compiler, the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import kernels
from kernels.cpu import build, library
from kernels.cpu.ops import CpuOps
from tests.kernels.cases import make_attention_case

ROOT = Path(kernels.__file__).resolve().parent.parent


def copy_sources(to: Path, *, with_library: bool) -> Path:
    """The kernels package alone, in a folder of its own."""
    ignored = (
        shutil.ignore_patterns("__pycache__", ".lib*") if with_library else shutil.ignore_patterns("*.so", ".lib*")
    )
    shutil.copytree(ROOT / "kernels", to / "kernels", ignore=ignored)
    return to / "kernels" / "cpu"


def run_without_compiler(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PATH": str(empty), "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_package_is_ours() -> None:
    assert kernels.OCTAVO


def test_importing_the_package_and_the_build_script_needs_no_torch() -> None:
    code = "import sys, kernels.cpu.build; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_missing_library_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(library.NativeLibraryError, match=r"missing.*make native"):
        library.load(path=tmp_path / "absent.so")


def test_a_stale_library_is_refused(tmp_path: Path) -> None:
    stale = tmp_path / "liboctavo_cpu.so"
    current = build.source_hash().encode()
    content = build.LIBRARY.read_bytes()
    assert current in content
    stale.write_bytes(content.replace(current, b"0" * len(current)))
    with pytest.raises(library.NativeLibraryError, match=r"stale.*make native"):
        library.load(path=stale)


def test_every_source_is_in_the_hash(tmp_path: Path) -> None:
    folder = copy_sources(tmp_path, with_library=False)
    before = build.source_hash(folder)
    assert before == build.source_hash()
    for source in [*folder.glob("*.cpp"), *folder.glob("*.h")]:
        original = source.read_text()
        source.write_text(original + "\n")
        assert build.source_hash(folder) != before, source.name
        source.write_text(original)
    assert build.source_hash(folder) == before


def test_an_unknown_instruction_set_names_the_known_ones() -> None:
    with pytest.raises(library.NativeLibraryError, match=r"'sse9' cannot run here; available: .*generic"):
        library.load("sse9")


def test_the_best_instruction_set_is_the_default() -> None:
    assert library.load().instruction_set == library.instruction_set() == library.available_instruction_sets()[0]


@pytest.mark.parametrize("name", ["x86-64-v4-bf16", "x86-64-v4"])
def test_avx2_and_avx512_agree_bit_for_bit(name: str) -> None:
    """All have a fused multiply-add and all reductions run over 16 lanes: a sequence may move between machines."""
    if name not in library.available_instruction_sets():
        pytest.skip(f"this processor has no {name}")
    wide, narrow = (CpuOps(library.load(isa), num_threads=2) for isa in (name, "x86-64-v3"))
    weight, x = torch.randn(100, 300), torch.randn(29, 300)
    assert torch.equal(wide.prepare_linear(weight, None)(x), narrow.prepare_linear(weight, None)(x))
    assert torch.equal(wide.rms_norm(x, x[0], 1e-5), narrow.rms_norm(x, x[0], 1e-5))
    assert torch.equal(wide.silu_and_mul(x), narrow.silu_and_mul(x))
    case = make_attention_case([(40, 40), (1, 600), (33, 300)], query_heads=9, kv_heads=3)
    assert torch.equal(case.call_native(wide), case.call_native(narrow))


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_avx2_and_avx512_multiply_the_same_integers(quantization: str) -> None:
    if "x86-64-v4" not in library.available_instruction_sets():
        pytest.skip("this processor has no x86-64-v4")
    weight, bias, x = torch.randn(100, 700).bfloat16(), torch.randn(100), torch.randn(29, 700)
    if quantization == "int8":
        weight = weight.float()
    wide, narrow = (
        CpuOps(library.load(isa), num_threads=2, quantization=quantization).prepare_linear(weight, bias)
        for isa in ("x86-64-v4", "x86-64-v3")
    )
    assert torch.equal(wide(x), narrow(x))


def test_a_missing_compiler_is_one_clear_line(tmp_path: Path) -> None:
    copy_sources(tmp_path, with_library=False)
    done = run_without_compiler(tmp_path, "-m", "kernels.cpu.build")
    assert done.returncode == 1
    assert done.stderr.startswith("error: g++ not found: install it (Debian/Ubuntu: apt-get install g++")
    assert len(done.stderr.splitlines()) == 1


def test_an_up_to_date_library_needs_no_compiler(tmp_path: Path) -> None:
    copy_sources(tmp_path, with_library=True)
    done = run_without_compiler(tmp_path, "-m", "kernels.cpu.build")
    assert (done.returncode, done.stdout) == (0, "native CPU ops: liboctavo_cpu.so is up to date\n")


PURE_WHEEL = "kernels_alone-1-py3-none-any.whl"
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "kernels-alone"
version = "1"
requires-python = ">=3.11"
[tool.hatch.build.targets.wheel]
packages = ["kernels"]
[tool.hatch.build.targets.wheel.hooks.custom]
path = "kernels/cpu/hatch_build.py"
"""


def build_wheel(folder: Path, **environment: str) -> tuple[str, list[str], str]:
    """File name, contents, and what the build said."""
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / ".gitignore").write_text("*.so\n")
    done = run_without_compiler(folder, "-m", "hatchling", "build", "-t", "wheel", **environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return wheel.name, archive.namelist(), done.stdout + done.stderr


def test_a_wheel_carries_the_library_and_a_platform_tag(tmp_path: Path) -> None:
    copy_sources(tmp_path, with_library=True)
    name, contents, _ = build_wheel(tmp_path)
    assert "kernels/cpu/liboctavo_cpu.so" in contents
    assert "kernels/cpu/simd.h" in contents  # the loader hashes the sources
    assert name.startswith("kernels_alone-1-py3-none-")
    assert os.uname().machine in name


def test_a_wheel_without_a_compiler_says_what_it_lacks(tmp_path: Path) -> None:
    copy_sources(tmp_path, with_library=False)
    name, contents, said = build_wheel(tmp_path)
    assert name == PURE_WHEEL
    assert "kernels/cpu/liboctavo_cpu.so" not in contents
    assert "native CPU ops are left out: g++ not found" in said


def test_a_wheel_may_skip_the_library(tmp_path: Path) -> None:
    copy_sources(tmp_path, with_library=False)
    name, _, said = build_wheel(tmp_path, OCTAVO_SKIP_NATIVE="1")
    assert name == PURE_WHEEL
    assert "left out" not in said
