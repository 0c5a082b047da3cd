"""Prints constraints.txt: the packages of the environment that runs it, pinned."""

from __future__ import annotations

import re
import subprocess
import sys

_HEADER = """\
# The releases that octavo is developed and tested with; `make constraints` writes this file.
# triton is the release that the builds of this torch for GPUs ask for."""
_UNPINNED = re.compile(r"^(nvidia-[\w-]+|cuda-[\w-]+)==")


def main() -> None:
    """Print header and pins."""
    freeze = [sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable"]
    frozen = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout.splitlines()
    # "torch==2.13.0+cpu" names one build of the release; any will do.
    pins = [line.split("+")[0] for line in frozen if "==" in line and not _UNPINNED.match(line)]
    print("\n".join([_HEADER, *pins]))


if __name__ == "__main__":
    main()
