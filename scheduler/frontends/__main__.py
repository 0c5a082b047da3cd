"""`python -m scheduler.frontends FD`: a front end for the process that started it, which is on the other end of FD."""

from __future__ import annotations

import os
import signal
import socket
import sys

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import uvloop

from scheduler import logs
from scheduler.frontends.channel import Channel
from scheduler.frontends.protocol import Listen
from scheduler.frontends.server import FrontendProcess


async def _run(descriptor: int) -> None:
    channel = await Channel.open(socket.socket(fileno=descriptor))
    listen = await channel.receive()
    assert isinstance(listen, Listen)
    logs.configure(listen.config.log_level, listen.config.log_format)
    await FrontendProcess(channel, listen).run()


def main() -> None:
    """Signals are for the engine's process, which says what they mean here."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    uvloop.run(_run(int(sys.argv[1])))


if __name__ == "__main__":
    main()
