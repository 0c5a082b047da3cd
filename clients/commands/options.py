"""Arguments that several sub-commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
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
    parser.add_argument("--min-tokens", type=int, metavar="N", help="fewest tokens before the model may end its answer")
    parser.add_argument(
        "--stop", metavar="TEXT", action="append", help="end the answer before this text; may be given several times"
    )
    group = parser.add_argument_group("sampling", "what is not given is the model's own choice, then the server's")
    group.add_argument("--temperature", type=float, metavar="T", help="softmax temperature; 0 is greedy")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likely tokens that sum to P")
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens less likely than P times the best one")
    group.add_argument("--seed", type=int, metavar="S", help="equal seeds give equal answers")
    group.add_argument("--presence-penalty", type=float, metavar="X", help="lower the logits of tokens already drawn")
    group.add_argument("--frequency-penalty", type=float, metavar="X", help="the same once for each time it was drawn")
    group.add_argument("--repetition-penalty", type=float, metavar="X", help="divide logits of tokens seen; 1 is off")
    _add_structure(parser)


def _add_structure(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("structured output", "what the answer must be; one of these")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--json", action="store_true", default=None, help="a JSON object")
    one.add_argument("--json-schema", type=_text_or_file, metavar="JSON|@FILE", help="JSON of this schema")
    one.add_argument("--regex", metavar="REGEX", help="a text that the whole regular expression matches")
    one.add_argument("--choice", metavar="TEXT", action="append", help="one of these texts; given several times")
    one.add_argument(
        "--grammar", type=_text_or_file, metavar="LARK|@FILE", help="a text of this grammar, in Lark's notation"
    )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The parameters that `add_sampling` read."""
    return SamplingParams(
        max_tokens=args.max_tokens,
        min_tokens=args.min_tokens,
        stop=args.stop,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        repetition_penalty=args.repetition_penalty,
        json_object=args.json,
        json_schema=args.json_schema,
        regex=args.regex,
        choice=args.choice,
        grammar=args.grammar,
    )


def _text_or_file(given: str) -> str:
    """The argument itself, or the content of the file that it names behind "@"."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {given[1:]}: {error}") from error
