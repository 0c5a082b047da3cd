"""`octavo info`: the served model and the scheduler's figures."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from clients.commands import options
from clients.sync import Client


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "info", help="show the model and the figures", description="Show the served model and the scheduler's figures."
    )
    options.add_target(parser)
    options.add_timeout(parser, 10)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    with Client(args.target) as client:
        sections: dict[str, dict[str, object]] = {"model": asdict(client.model_info(timeout=args.timeout))}
        stats = asdict(client.stats(timeout=args.timeout))
    del stats["worker"]  # the first of them
    sections |= {f"worker {worker['address']}": worker for worker in stats.pop("workers")}
    sections |= stats
    for section, values in sections.items():
        print(section)
        for name, value in values.items():
            print(f"  {name:<22} {_shown(value)}")
    return 0


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {figure}" for name, figure in value.items())
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value)
    return str(value)
