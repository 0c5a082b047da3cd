"""The `octavo` command: one module per sub-command in `clients.commands`, each with an `add_parser` and a `run`.

Exit codes: 0 done, 1 failed with one line on stderr, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from clients.commands import (
    blocks,
    chat,
    demo,
    explain,
    generate,
    health,
    info,
    options,
    replay,
    requests,
    serve,
    tokenize,
)
from clients.errors import OctavoError, UnavailableError
from clients.local.errors import LocalError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit code."""
    args = _parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except UnavailableError as error:
        # Only commands with a target call a server that somebody else runs. One that gives a reason is running.
        nobody = "target" in args and not error.reason
        hint = f" (is a server running at {args.target}? `octavo serve` starts one)" if nobody else ""
        print(f"octavo {args.command}: {error}{hint}", file=sys.stderr)
        return 1
    except (OctavoError, LocalError) as error:
        print(f"octavo {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away, as in `octavo generate ... | head`. Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


class _Parser(argparse.ArgumentParser):
    """Takes flags by their whole names: an abbreviation in a script would break with the next flag that begins so."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="octavo", description="Serve a language model, or talk to a server.")
    parser.add_argument("--version", action="version", version=f"octavo {_version()}")
    commands: options.Commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    for command in (serve, generate, chat, demo, info, health, requests, explain, blocks, tokenize, replay):
        command.add_parser(commands)
    return parser


def _version() -> str:
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
