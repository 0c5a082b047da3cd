"""The address to listen on: how gRPC takes it, and whether it can be had, of which gRPC only says no."""

from __future__ import annotations

import contextlib
import errno
import socket
import tempfile
from collections.abc import Iterator

_REASONS = {
    errno.EADDRINUSE: "Address already in use; {flag} picks another",
    errno.EADDRNOTAVAIL: "not an address of this machine",
}


class ListenError(Exception):
    """The address cannot be listened on."""


def listen_address(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_free(host: str, port: int, flag: str = "--port") -> None:
    """Raises ListenError, one line that says why the address cannot be had. flag: what sets the port.

    A name may stand for several addresses. One that is in use is enough to refuse, because clients might end up there;
    else one that can be had is enough, as it is to gRPC: machines without IPv6 know localhost as ::1, too.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"cannot listen on {listen_address(host, port)}: no such host") from error
    failures: list[OSError] = []
    for family, kind, protocol, _, address in found:
        try:
            with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
                # As gRPC does: connections that linger from a server that has just ended do not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
        except OSError as error:
            failures.append(error)
    in_use = [error for error in failures if error.errno == errno.EADDRINUSE]
    if in_use or len(failures) == len(found):
        cause = (in_use or failures)[0]
        reason = _REASONS.get(cause.errno or 0, cause.strerror or "").format(flag=flag)
        raise ListenError(f"cannot listen on {listen_address(host, port)}: {reason}") from cause


@contextlib.contextmanager
def reserve_port(host: str, port: int) -> Iterator[int]:
    """Holds a port for processes that will share it, the one that is free if `port` is 0, without listening on it.

    Raises ListenError.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Else connections that linger from a server without front ends, which has just ended, would count.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(address)
        except OSError as error:
            raise ListenError(f"cannot listen on {listen_address(host, port)}: {error.strerror}") from error
        yield holder.getsockname()[1]


@contextlib.contextmanager
def private_address() -> Iterator[str]:
    """A place for a server that only processes of this user reach, as gRPC takes it."""
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        yield f"unix:{folder}/engine"
