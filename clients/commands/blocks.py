"""`octavo blocks`: what the blocks of the KV cache are used for."""

from __future__ import annotations

import argparse

from clients.admin import AdminClient
from clients.commands import options
from clients.commands.table import print_table


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "blocks",
        help="list the blocks of the KV cache",
        description="List the blocks of the KV cache, or the block table of one request, and who uses them.",
    )
    parser.add_argument("request_id", metavar="REQUEST_ID", nargs="?", help="only the block table of this request")
    parser.add_argument("--index", type=int, metavar="I", default=0, help="which of its sequences (default: 0)")
    parser.add_argument(
        "--state", choices=("free", "cached", "referenced"), default="", help="only blocks in this state"
    )
    options.add_target(parser)
    options.add_timeout(parser, 10)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    with AdminClient(args.target, timeout=args.timeout) as client:
        blocks = (
            client.blocks(state=args.state)
            if args.request_id is None
            else (b for b in client.block_table(args.request_id, args.index) if args.state in ("", b.state))
        )
        rows = [
            (
                block.block,
                block.state,
                block.references,
                block.tokens,
                "yes" if block.indexed else "",
                ", ".join(f"{name}[{index}]" if index else name for name, index, _ in block.users),
                block.tenant,
                block.worker,
            )
            for block in blocks
        ]
    print_table(("BLOCK", "STATE", "REFERENCES", "TOKENS", "INDEXED", "USERS", "TENANT", "WORKER"), rows)
    return 0
