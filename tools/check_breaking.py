"""Runs `buf breaking` against the protos on the branch main. Says so if there is nothing to compare with."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def main() -> int:
    """The exit code of buf; 0 when skipped."""
    base = next((ref for ref in ("main", "origin/main") if _git("rev-parse", "--verify", "--quiet", ref)), None)
    if base is None:
        print("buf breaking: skipped, this clone has no branch main")
        return 0
    if not _git("ls-tree", "--name-only", base, "protos/octavo"):
        print(f"buf breaking: skipped, {base} has no protos")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        archive = _git("archive", base, "buf.yaml", "protos/octavo")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        buf = Path(sys.executable).with_name("buf")
        return subprocess.run([buf, "breaking", "--against", folder], check=False).returncode


def _git(*arguments: str) -> bytes:
    """The output of git; empty if it fails, as it does outside a repository."""
    return subprocess.run(["git", *arguments], capture_output=True, check=False).stdout


if __name__ == "__main__":
    sys.exit(main())
