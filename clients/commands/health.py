"""`octavo health`: exit code 0 if the server serves."""

from __future__ import annotations

import argparse

from clients.commands import options
from clients.errors import DeadlineError
from clients.local.errors import LocalError
from clients.sync import Client


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "health",
        help="ask whether the server serves",
        description="Print SERVING and exit with 0, or NOT_SERVING and exit with 1.",
    )
    options.add_target(parser)
    options.add_timeout(parser, 5)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    with Client(args.target) as client:
        try:
            serving = client.health(timeout=args.timeout)
        except DeadlineError:  # something accepts connections there, or stands still
            raise LocalError(f"no server answers at {args.target} within {args.timeout:g} s") from None
    print("SERVING" if serving else "NOT_SERVING")
    return 0 if serving else 1
