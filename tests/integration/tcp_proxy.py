"""A TCP proxy whose network can be broken: it swallows everything, silently, or cuts every connection."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16


class TcpProxy:
    """Forwards connections to HOST:PORT between enter and exit. swallowing: while it is True no byte gets through in
    either direction, what was sent is lost, and new connections are accepted and hear nothing."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.swallowing = False

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Ends all connections."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(OSError):
                client, _ = self._listener.accept()
                pair = (client, socket.create_connection(self._target, 10))
                self._pairs.append(pair)
                threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        with client, server, contextlib.suppress(OSError):
            while not self._stopped.is_set():
                for source in select.select([client, server], [], [], 0.2)[0]:
                    content = source.recv(_CHUNK)
                    if not content:
                        return
                    if not self.swallowing:
                        other[source].sendall(content)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._listener.close()
        self.cut()
