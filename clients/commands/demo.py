"""`octavo demo`: start everything, ask one question, show the answer and its times, stop everything."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from clients.aio import AsyncClient
from clients.commands import options
from clients.commands.answer import Answer
from clients.errors import OctavoError
from clients.local import preflight
from clients.local.address import LOOPBACK
from clients.local.errors import LocalError
from clients.local.services import Services, ServicesConfig
from clients.local.signals import StopSignals
from clients.request import Message

_QUESTION = "What is the capital of France?"
_MAX_TOKENS = 64
_INTERRUPTED = 130


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "demo",
        help="ask a model one question, from start to stop",
        description=f'Start a scheduler and a worker, ask "{_QUESTION}", stream the answer, and stop both again.',
    )
    parser.add_argument(
        "--model", metavar="MODEL", required=True, help="directory, FILE.gguf, or id on the Hugging Face Hub"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command. The services' logs go to a file, which stays only if something failed."""
    preflight.check_torch()
    model = f"--model={args.model}"
    config = ServicesConfig(
        scheduler=preflight.free_address(LOOPBACK),
        worker=preflight.free_address(LOOPBACK),
        scheduler_arguments=(model,),
        worker_arguments=(model,),
    )
    with tempfile.NamedTemporaryFile(prefix="octavo-demo-", suffix=".log", delete=False) as log:
        path = Path(log.name)
        try:
            code = asyncio.run(_demo(config, Services(config, log.file)))
        except (LocalError, OctavoError) as error:
            lines = path.read_text(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "the log is empty")
            raise LocalError(f"{error}: {last} (log: {path})") from None
    path.unlink()
    return code


async def _demo(config: ServicesConfig, services: Services) -> int:
    async with services:
        signals = StopSignals(on_second=services.stop_now)
        started = time.monotonic()
        print("Starting a scheduler and a worker ...", flush=True)
        info = await signals.unless_stopped(services.start())
        if info is None:
            return _INTERRUPTED
        print(f"Octavo serves {info.served_model_name} after {time.monotonic() - started:.1f} s.", flush=True)
        answer = await signals.unless_stopped(_ask(config.scheduler.target))
        if answer is None:
            return _INTERRUPTED
        print(f"({answer.summary})", flush=True)
        if await services.drain() != 0:
            raise LocalError("the scheduler did not stop cleanly")
    return 0


async def _ask(target: str) -> Answer:
    print(f"\n> {_QUESTION}", flush=True)
    async with AsyncClient(target) as client:
        answer = Answer()
        messages = [Message(role="user", content=_QUESTION)]
        async with client.generate(messages=messages, temperature=0, max_tokens=_MAX_TOKENS) as stream:
            async for delta in stream:
                answer.add(delta)
                sys.stdout.write(delta.text)
                sys.stdout.flush()
            answer.usage = stream.usage
    print(flush=True)
    return answer
