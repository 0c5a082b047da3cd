"""`octavo requests`: what is live, oldest first."""

from __future__ import annotations

import argparse

from clients.admin import AdminClient
from clients.commands import options
from clients.commands.table import print_table

_HEADER = (
    "REQUEST", "STATE", "PLACE", "AGE", "PROMPT", "OUTPUT", "COMPUTED", "BLOCKS", "PREEMPTED", "PRIORITY", "TENANT",
    "WORKER",
)  # fmt: skip


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "requests",
        help="list the live requests",
        description="List the sequences of live requests, oldest first, with their tokens and blocks.",
    )
    options.add_target(parser)
    options.add_timeout(parser, 10)
    parser.add_argument(
        "--state", choices=("preparing", "waiting", "running", "swapped"), default="", help="only these"
    )
    parser.add_argument("--tenant", metavar="NAME", help="only requests of this tenant")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    with AdminClient(args.target, timeout=args.timeout) as client:
        sequences = list(client.requests(state=args.state, tenant=args.tenant))
    print_table(
        _HEADER,
        (
            (
                one.request_id if one.index == 0 else f"{one.request_id} [{one.index}]",
                one.state,
                one.queue_position,
                f"{one.age_seconds:.1f} s",
                one.prompt_tokens,
                one.output_tokens,
                one.computed_tokens,
                one.blocks,
                one.preemptions,
                one.priority,
                one.tenant,
                one.worker,
            )
            for one in sequences
        ),
    )
    return 0
