"""Generates protos/gen from protos/octavo; with --check, compares instead of writing."""

from __future__ import annotations

import argparse
import filecmp
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

_SOURCE = Path("protos")
_OUTPUT = _SOURCE / "gen"


def main() -> int:
    """Write the stubs, or report the ones that differ and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if protos/gen is not what would be written")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        _generate(fresh)
        if check:
            return _compare(fresh)
        shutil.rmtree(_OUTPUT, ignore_errors=True)
        shutil.copytree(fresh, _OUTPUT)
    return 0


def _generate(output: Path) -> None:
    sources = sorted(str(path) for path in (_SOURCE / "octavo").rglob("*.proto"))
    includes = [f"-I{_SOURCE}", f"-I{files('grpc_tools') / '_proto'}"]
    outputs = [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", *includes, *outputs, *sources]) != 0:
        sys.exit("protoc failed")


def _compare(fresh: Path) -> int:
    def names(root: Path) -> set[Path]:
        return {path.relative_to(root) for path in root.rglob("*.py*") if path.suffix in (".py", ".pyi")}

    stale = sorted(
        str(name)
        for name in names(fresh) | names(_OUTPUT)
        if not (fresh / name).exists()
        or not (_OUTPUT / name).exists()
        or not filecmp.cmp(fresh / name, _OUTPUT / name, shallow=False)
    )
    if stale:
        print(f"stubs in {_OUTPUT} do not match the protos; run `make protos`: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
