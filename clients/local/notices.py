"""What `octavo serve` says besides its answer, on standard error."""

from __future__ import annotations

import contextlib
import os
import sys


def notice(text: str) -> None:
    """Write a line. One that cannot be written is dropped: serving goes on without a reader."""
    if sys.stderr:
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), f"octavo: {text}\n".encode(errors="backslashreplace"))
