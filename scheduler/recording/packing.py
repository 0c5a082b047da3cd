"""Integers, text and columns of integers as bytes.

Scalars are varints: seven bits per byte, low ones first. A column is one mode byte, its length and its content: mode 0
is one value that stands for all, mode w is w byte planes (the lowest byte of every value, then the next, ...), as few
as the largest value needs. Planes cost two or three calls of C code where varints would cost one step of Python per
value.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from scheduler.recording.errors import RecordingError

_CONSTANT = 0


class Packer:
    """Appends values to a growing buffer. now_ns: time of the record at hand, which times within it are relative to."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.now_ns = 0

    def take(self) -> bytes:
        """All bytes so far; the buffer is empty afterwards."""
        content = bytes(self.buffer)
        self.buffer.clear()
        return content

    def unsigned(self, value: int) -> None:
        """An integer >= 0."""
        buffer = self.buffer
        while value > 0x7F:
            buffer.append(value & 0x7F | 0x80)
            value >>= 7
        buffer.append(value)

    def signed(self, value: int) -> None:
        """Any integer; small ones of either sign are short."""
        self.unsigned(value << 1 if value >= 0 else ~(value << 1))

    def blob(self, content: bytes) -> None:
        """Bytes with their length."""
        self.unsigned(len(content))
        self.buffer += content

    def text(self, text: str) -> None:
        """A string."""
        self.blob(text.encode())

    def column(self, values: Sequence[int]) -> None:
        """Integers in [0, 2**64)."""
        count = len(values)
        if count == 0 or values.count(values[0]) == count:
            self.buffer.append(_CONSTANT)
            self.unsigned(count)
            if count:
                self.unsigned(values[0])
            return
        try:
            width, packed = 4, struct.pack(f"<{count}I", *values)
        except struct.error:
            width, packed = 8, struct.pack(f"<{count}Q", *values)
        planes = [packed[place::width] for place in range(width)]
        while planes[-1].count(0) == count:
            planes.pop()
        self.buffer.append(len(planes))
        self.unsigned(count)
        for plane in planes:
            self.buffer += plane


class Unpacker:
    """Reads what a `Packer` wrote. Raises RecordingError where the content ends too early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0
        self.now_ns = 0

    @property
    def at_end(self) -> bool:
        """Whether all was read."""
        return self._position >= len(self._content)

    def byte(self) -> int:
        """The next byte."""
        return self._slice(1)[0]

    def unsigned(self) -> int:
        """As `Packer.unsigned`."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def signed(self) -> int:
        """As `Packer.signed`."""
        value = self.unsigned()
        return ~(value >> 1) if value & 1 else value >> 1

    def blob(self) -> bytes:
        """As `Packer.blob`."""
        return self._slice(self.unsigned())

    def text(self) -> str:
        """As `Packer.text`."""
        return self.blob().decode()

    def column(self) -> tuple[int, ...]:
        """As `Packer.column`."""
        num_planes, count = self.byte(), self.unsigned()
        if num_planes == _CONSTANT:
            return (self.unsigned(),) * count if count else ()
        if num_planes > 8:
            raise RecordingError(f"no such column mode: {num_planes}")
        packed = bytearray(8 * count)
        for place in range(num_planes):
            packed[place::8] = self._slice(count)
        return struct.unpack(f"<{count}Q", packed)

    def _slice(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._content):
            raise RecordingError("a record ends too early")
        content = self._content[self._position : end]
        self._position = end
        return content
