"""Becomes a Python command that dies with its parent: `python launcher.py PARENT_PID ARGUMENT...`.

A program of its own because the request must be made in the child between fork and exec, where a parent with threads
may not run Python code. It is run by path and imports nothing of the project.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGKILL at the parent's death, then turn into `python ARGUMENT...`."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the parent process ended before this one began")
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])


if __name__ == "__main__":
    main()
