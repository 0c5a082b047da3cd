"""Reads the metadata of a GGUF file: the key-value pairs before the tensors, and nothing else.

The `gguf` package indexes every string of the vocabulary into numpy arrays, which takes seconds; a tokenizer needs
plain Python values. Format (versions 2 and 3, little-endian): https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Final

from scheduler.frontend.errors import UnsupportedModelError

MetadataValue = int | float | bool | str | list["MetadataValue"]

_SCALARS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING: Final = 8
_ARRAY: Final = 9
_VERSIONS: Final = (2, 3)


def read_metadata(path: Path) -> dict[str, MetadataValue]:
    """All key-value pairs of the file. Raises UnsupportedModelError where it is no GGUF file of a known version."""
    with path.open("rb") as file:
        reader = _Reader(file, path)
        magic = reader.read(4)
        if magic != b"GGUF":
            raise UnsupportedModelError(f"{path}: begins with {magic!r}, a GGUF file begins with b'GGUF'")
        version = reader.scalar(4)
        if version not in _VERSIONS:
            raise UnsupportedModelError(f"{path}: GGUF version {version} is not supported, versions 2 and 3 are")
        reader.scalar(10)  # number of tensors
        count = reader.scalar(10)
        return {reader.string(): reader.value(int(reader.scalar(4))) for _ in range(int(count))}


class _Reader:
    """A cursor over the file that checks every length against the file's size before it reads."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._size = path.stat().st_size

    def read(self, num_bytes: int) -> bytes:
        # A corrupt length must neither allocate its own size nor return short data.
        data = self._file.read(num_bytes) if num_bytes <= self._size else b""
        if len(data) != num_bytes:
            raise UnsupportedModelError(
                f"{self._path}: truncated or corrupt, {num_bytes} bytes of metadata are missing"
            )
        return data

    def scalar(self, kind: int) -> int | float | bool:
        layout = _SCALARS[kind]
        value: int | float | bool = layout.unpack(self.read(layout.size))[0]
        return value

    def string(self) -> str:
        # Some vocabularies hold byte strings that are no UTF-8; they stay distinct under surrogateescape.
        return self.read(int(self.scalar(10))).decode("utf-8", errors="surrogateescape")

    def value(self, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise UnsupportedModelError(f"{self._path}: unknown metadata value type {kind}")
        return self.scalar(kind)

    def _array(self) -> MetadataValue:
        kind, count = int(self.scalar(4)), int(self.scalar(10))
        if kind in _SCALARS:
            layout = _SCALARS[kind]
            data = self.read(layout.size * count)
            return [item for (item,) in layout.iter_unpack(data)]
        return [self.value(kind) for _ in range(count)]
