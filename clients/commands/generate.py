"""`octavo generate`: one prompt, one streamed answer."""

from __future__ import annotations

import argparse
import sys

from clients.commands import options
from clients.commands.answer import Answer
from clients.request import Message
from clients.sync import Client


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "generate",
        help="answer one prompt",
        description="Stream the answer to one prompt to stdout; tokens and times go to stderr. "
        "A model with a chat template gets the prompt as a user's message.",
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt; - reads it from stdin")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    options.add_target(parser)
    options.add_timeout(parser, None)
    options.add_sampling(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    params = options.sampling_params(args)
    with Client(args.target) as client:
        if args.raw or not client.model_info(timeout=args.timeout).has_chat_template:
            stream = client.generate(prompt, sampling_params=params, timeout=args.timeout)
        else:
            turn = Message(role="user", content=prompt)
            stream = client.generate(messages=[turn], sampling_params=params, timeout=args.timeout)
        answer = Answer()
        with stream:
            try:
                answer.print_all(stream)
            finally:
                if answer.text:
                    print(flush=True)
        usage = answer.usage = stream.usage
    cached = f", prompt {usage.prompt_tokens} tokens ({usage.cached_tokens} cached)" if usage else ""
    print(f"{answer.summary}{cached}", file=sys.stderr)
    return 0
