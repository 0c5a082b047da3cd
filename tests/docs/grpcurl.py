"""Stands in for grpcurl where it is not installed: the same command line, carried out by `buf curl`, which comes with
the development packages. What buf has no word for (describe) ends with status 3."""

from __future__ import annotations

import os
import sys
from pathlib import Path

UNKNOWN_TO_BUF = 3


def main() -> None:
    """Becomes buf."""
    arguments, options = sys.argv[1:], []
    while arguments and arguments[0].startswith("-"):
        flag = arguments.pop(0)
        if flag == "-d":
            options += ["-d", arguments.pop(0)]
        elif flag != "-plaintext":
            sys.exit(f"{flag}: not known to this stand-in for grpcurl")
    address, *words = arguments
    url = f"http://{address}"
    match words:
        case ["list"]:
            options.append("--list-services")
        case ["describe", _]:
            sys.exit(UNKNOWN_TO_BUF)
        case [method]:
            url += f"/{method}"
    buf = Path(sys.executable).parent / "buf"
    os.execv(buf, [str(buf), "curl", "--protocol=grpc", "--http2-prior-knowledge", *options, url])


if __name__ == "__main__":
    main()
