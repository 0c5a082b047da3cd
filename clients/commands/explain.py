"""`octavo explain`: why a request waits, or what it does."""

from __future__ import annotations

import argparse

from clients.admin import AdminClient
from clients.commands import options
from clients.inspection import Explanation


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "explain",
        help="say why a request waits",
        description="Say what holds a live request up, who holds the blocks, and what was decided about it.",
    )
    parser.add_argument("request_id", metavar="REQUEST_ID", help="as `octavo requests` lists it")
    options.add_target(parser)
    options.add_timeout(parser, 10)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    with AdminClient(args.target, timeout=args.timeout) as client:
        print("\n".join(_lines(args.request_id, client.explain(args.request_id))))
    return 0


def _lines(request_id: str, explanation: Explanation) -> list[str]:
    lines = [f"{request_id} {explanation.summary}"]
    for entry in explanation.sequences:
        if len(explanation.sequences) > 1:
            lines.append(f"  [{entry.sequence.index}] {entry.sentence}")
        lines += [f"    {text}" for text in entry.history]
    if explanation.holders:
        lines.append(f"who holds blocks, {len(explanation.holders)} of {explanation.total_holders}:")
    for holder in explanation.holders:
        name = holder.request_id if holder.index == 0 else f"{holder.request_id} [{holder.index}]"
        lines.append(f"  {name}: {holder.blocks}, {holder.exclusive_blocks} of them alone")
    return lines
