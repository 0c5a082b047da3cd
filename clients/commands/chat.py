"""`octavo chat`: a conversation on the terminal, or over a pipe with one user message per line."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

from clients.commands import options
from clients.commands.answer import Answer
from clients.errors import InvalidRequestError
from clients.request import Message, SamplingParams
from clients.sync import Client


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "chat",
        help="talk to the model",
        description="Talk to the model. /exit or Ctrl-D ends it, Ctrl-C stops an answer. "
        "Without a terminal, each line of stdin is one user message.",
    )
    parser.add_argument("--system", metavar="TEXT", help="begin the conversation with this system message")
    options.add_target(parser)
    options.add_sampling(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    interactive = sys.stdin.isatty()
    history = [Message(role="system", content=args.system)] if args.system else []
    params = options.sampling_params(args)
    with Client(args.target) as client:
        name = client.model_info(timeout=10).served_model_name
        if interactive:
            print(f"{name} at {args.target}. /exit or Ctrl-D ends it, Ctrl-C stops an answer.", file=sys.stderr)
        for line in _user_lines(interactive):
            history.append(Message(role="user", content=line))
            try:
                answer = _answer(client, history, params)
            except InvalidRequestError as error:
                # Most likely the conversation no longer fits: without this turn it still does.
                if not interactive:
                    raise
                history.pop()
                print(f"octavo chat: {error}", file=sys.stderr)
                continue
            history.append(Message(role="assistant", content=answer.text))
            if interactive:
                print(f"({answer.summary})", file=sys.stderr)
    return 0


def _answer(client: Client, history: list[Message], params: SamplingParams) -> Answer:
    """Print the answer to the conversation. Ctrl-C keeps what has arrived and frees the rest on the server."""
    answer = Answer()
    with client.generate(messages=history, sampling_params=params) as stream, contextlib.suppress(KeyboardInterrupt):
        answer.print_all(stream)
    answer.usage = stream.usage
    print(flush=True)
    return answer


def _user_lines(interactive: bool) -> Iterator[str]:
    """The user's non-empty lines up to /exit or the end of input. Ctrl-C at a prompt drops the line."""
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() editing and recall; some builds of Python lack it
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            print()
            continue
        if line == "/exit":
            return
        if line:
            yield line
