"""What is checked before anything is started, so that a mistake costs one line and no waiting."""

from __future__ import annotations

import errno
import socket
from importlib.util import find_spec

from clients.local.address import Address
from clients.local.errors import LocalError

_REASONS = {
    errno.EADDRINUSE: "Address already in use; stop what uses it or choose another port",
    errno.EADDRNOTAVAIL: "not an address of this machine",
}


def check_torch() -> None:
    """The worker computes with torch, which a plain `pip install .` in Octavo's checkout leaves out."""
    if find_spec("torch") is None:
        raise LocalError("the worker needs torch, which is not installed: pip install '.[worker]' in Octavo's checkout")


def free_address(host: str, port: int = 0) -> Address:
    """The address, which nobody uses at present, with a free port for 0. Raises LocalError if it cannot be had."""
    address = Address(host=host, port=port)
    if not 0 <= port <= 65535:
        raise LocalError(f"cannot listen on {address}: a port must be in [0, 65535]")
    try:
        # The IPv4 one of a name that has several, which every machine knows; the service checks them all.
        family, kind, protocol, _, place = min(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        raise LocalError(f"cannot listen on {address}: no such host") from None
    try:
        with socket.socket(family, kind, protocol) as probe:
            # As gRPC does: connections that linger from a server that has just ended do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            return Address(host=host, port=probe.getsockname()[1])
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror)
        raise LocalError(f"cannot listen on {address}: {reason}") from None
