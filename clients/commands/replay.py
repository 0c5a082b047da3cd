"""`octavo replay`: what a recording of the scheduler core says, on any machine.

The replay runs the scheduler's own code, which clients do not import, so it is a process of its own, as the services
are. Its flags are its own, too: all arguments go through as they are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from clients.commands import options


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "replay",
        help="replay a recording of the scheduler and compare its plans, or ask what other limits would have done",
        add_help=False,
        prefix_chars="\0",  # nothing looks like a flag here, --help neither
    )
    parser.add_argument("arguments", nargs="*")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    # -P: a folder named like the module, where the user happens to be, is not what is meant.
    command = [sys.executable, "-P", "-m", "scheduler.recording", *args.arguments]
    return subprocess.run(command, check=False).returncode
