"""Values between two processes of one service, over a socket that only they have: pickled, each behind its length."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from typing import Any, Final

_LENGTH: Final = struct.Struct("<I")
# Some 20,000 updates of 500 sequences: a peer that is so far behind does not come back.
_MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
_READ_LIMIT: Final = 1 << 20


class ChannelError(Exception):
    """The peer has gone, or does not read."""


def encode(value: object) -> bytes:
    """A value as it travels, for peers that all get the same."""
    content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


class Channel:
    """One end. Sending never waits; what the peer has not read is bounded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        """Takes over a connected socket."""
        reader, writer = await asyncio.open_connection(sock=end, limit=_READ_LIMIT)
        return cls(reader, writer)

    def send(self, value: object) -> None:
        """Raises ChannelError."""
        self.send_encoded(encode(value))

    def send_encoded(self, content: bytes) -> None:
        """Sends what `encode` made. Raises ChannelError."""
        transport = self._writer.transport
        if transport.is_closing():
            raise ChannelError("the peer has gone")
        self._writer.write(content)
        if transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            transport.abort()
            raise ChannelError(f"the peer has {_MAX_UNSENT_BYTES} bytes before it and does not read them")

    async def receive(self) -> Any:
        """The next value. Raises ChannelError."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ChannelError("the peer has gone") from error

    async def flush(self) -> None:
        """Waits until most of what was sent is on its way."""
        await self._writer.drain()

    def close(self) -> None:
        """Closes this end."""
        self._writer.close()
