"""What is checked before anything is started, so that a mistake costs one line and no waiting."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from clients.local.errors import LocalError


def check_torch() -> None:
    """The worker computes with torch, which a plain `pip install octavo` leaves out."""
    if find_spec("torch") is None:
        raise LocalError("the worker needs torch, which is not installed: pip install 'octavo[worker]'")


def check_port(host: str, port: int) -> None:
    """The address must be free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise LocalError(f"--host {host}: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        # As gRPC does: connections that linger from a server that has just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise LocalError(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it or give another --port"
            ) from None


def free_port() -> int:
    """A port of the loopback interface that nobody uses at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
