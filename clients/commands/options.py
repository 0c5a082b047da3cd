"""Arguments that several sub-commands share."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from clients.request import SamplingParams

DEFAULT_PORT = 50051

# argparse declares the class of what `add_subparsers` returns as private, and offers no other name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which server to call."""
    parser.add_argument(
        "--target",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help="address of the server (default: %(default)s)",
    )


def add_timeout(parser: argparse.ArgumentParser, default: float | None) -> None:
    """How long a call may take."""
    shown = "no limit" if default is None else f"{default:g}"
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", default=default, help=f"most seconds to wait (default: {shown})"
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How many tokens there are, and how they are drawn: what is not given of that is the model's or the server's
    choice."""
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", default=512, help="most tokens to generate (default: %(default)s)"
    )
    parser.add_argument(
        "--stop", metavar="TEXT", action="append", help="end the answer before this text; may be given several times"
    )
    group = parser.add_argument_group("sampling", "what is not given is the model's own choice, then the server's")
    group.add_argument("--temperature", type=float, metavar="T", help="softmax temperature; 0 is greedy")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likely tokens that sum to P")
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens less likely than P times the best one")
    group.add_argument("--seed", type=int, metavar="S", help="equal seeds give equal answers")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The parameters that `add_sampling` read."""
    return SamplingParams(
        max_tokens=args.max_tokens,
        stop=args.stop,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
    )
