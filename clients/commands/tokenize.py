"""`octavo tokenize`: the tokens of a text, one per line."""

from __future__ import annotations

import argparse
import sys

from clients.commands import options
from clients.request import Message
from clients.sync import Client
from clients.tokenizer_client import PromptKeywords


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "tokenize", help="show the tokens of a text", description="Show id and bytes of each token of a text."
    )
    parser.add_argument("text", metavar="TEXT", help="the text; - reads it from stdin")
    parser.add_argument("--chat", action="store_true", help="as a user's message, with the model's chat template")
    parser.add_argument("--count", action="store_true", help="show only how many there are")
    options.add_target(parser)
    options.add_timeout(parser, 10)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    given = sys.stdin.read() if args.text == "-" else args.text
    text = None if args.chat else given
    keywords: PromptKeywords = {"messages": [Message(role="user", content=given)]} if args.chat else {}
    with Client(args.target) as client:
        if args.count:
            print(client.count_tokens(text, timeout=args.timeout, **keywords))
            return 0
        tokens = client.tokenize(text, with_token_bytes=True, timeout=args.timeout, **keywords)
    for token_id, data in zip(tokens.token_ids, tokens.token_bytes, strict=True):
        print(f"{token_id:>8} {_shown(data)}")
    return 0


def _shown(data: bytes) -> str:
    """As a string literal, or one of bytes where it is not whole characters."""
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)
