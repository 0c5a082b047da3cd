"""`python -m scheduler`, but that names are looked up in a file, and often: NAMES has a line `NAME ADDRESS...` each.

It stands for a resolver whose answers change; all else, from the lookup on, is the scheduler of this repository.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

from scheduler import roster
from scheduler.__main__ import main


class _Loop(uvloop.Loop):
    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        for line in _lines():
            name, *addresses = line.split()
            if name == host:
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, int(port))) for one in addresses]
        raise socket.gaierror(socket.EAI_NONAME, "no such name in the file")


def _lines() -> list[str]:
    return Path(os.environ["NAMES"]).read_text().splitlines()


if __name__ == "__main__":
    roster.RESOLVE_INTERVAL_S = 0.05  # type: ignore[misc]
    uvloop.run = functools.partial(uvloop.run, loop_factory=_Loop)
    sys.exit(main())
