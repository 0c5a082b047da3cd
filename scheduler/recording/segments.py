"""The files of a recording: FILE, FILE.1, FILE.2 and so on are its segments, in this order, and together they replay.

A segment is a magic number and frames. A frame is a head (length and CRC-32 of the body, CRC-32 of those two) and a
body. The first frame is the header, JSON that makes the segment readable by itself: version of the format, which
recording and which segment of it this is, the limits, the names of plan columns and the time that the first record is
relative to. Every other frame holds whole records.

A crash can only tear the last frame of the last segment. Whatever else is not as it was written is an error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from scheduler.core.config import CoreConfig
from scheduler.recording.errors import RecordingError
from scheduler.recording.values import changed_fields, config_from_json, to_json

FORMAT = 2
_MAGIC = b"\x89octavo\n"
_HEAD = struct.Struct("<III")
_SUMMED = struct.Struct("<II")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a segment says of itself. start_ns: time base of the first record. wall_ns: the same moment since 1970."""

    recording: str
    segment: int
    start_ns: int
    wall_ns: int
    columns: tuple[str, ...]
    config: CoreConfig

    def to_json(self) -> str:
        """As it is written."""
        return to_json(
            {
                "format": FORMAT,
                "recording": self.recording,
                "segment": self.segment,
                "start_ns": self.start_ns,
                "wall_ns": self.wall_ns,
                "columns": self.columns,
                "config": changed_fields(self.config),
            }
        )

    @classmethod
    def from_json(cls, content: bytes, path: Path) -> Header:
        """As it was written. Raises RecordingError for another version."""
        values: dict[str, Any] = json.loads(content)
        if values["format"] != FORMAT:
            raise RecordingError(f"{path}: format {values['format']}, this version reads format {FORMAT}")
        try:
            config = config_from_json(values["config"])
        except (RecordingError, ValueError) as error:
            raise RecordingError(f"{path}: {error}") from error
        return cls(
            recording=values["recording"],
            segment=values["segment"],
            start_ns=values["start_ns"],
            wall_ns=values["wall_ns"],
            columns=tuple(values["columns"]),
            config=config,
        )


def segment_path(path: Path, index: int) -> Path:
    """FILE, FILE.1, FILE.2 ..."""
    return path.with_name(f"{path.name}.{index}") if index else path


def segment_paths(path: Path) -> list[Path]:
    """The segments that are there, in order. Raises RecordingError if there is none or one is missing in between."""
    if not path.is_file():
        raise RecordingError(f"{path}: no such file")
    indices = sorted(
        int(other.suffix[1:]) for other in path.parent.glob(f"{path.name}.*") if other.suffix[1:].isdecimal()
    )
    for expected, index in enumerate(indices, 1):
        if index != expected:
            raise RecordingError(f"{segment_path(path, expected)} is missing, but {segment_path(path, index)} is there")
    return [segment_path(path, index) for index in range(len(indices) + 1)]


class SegmentWriter:
    """One new file. size: bytes written. Raises OSError as files do, FileExistsError if there is such a file."""

    def __init__(self, path: Path, header: Header) -> None:
        self._file = path.open("xb", buffering=0)
        self._write(_MAGIC)
        self.size = len(_MAGIC)
        self.append(header.to_json().encode())

    def append(self, body: bytes) -> None:
        """Writes a frame through to the operating system, so that a crash of this process loses none before it."""
        summed = _SUMMED.pack(len(body), crc32(body))
        self._write(_HEAD.pack(len(body), crc32(body), crc32(summed)) + body)
        self.size += _HEAD.size + len(body)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[self._file.write(view) :]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame's body, and where it begins in the file."""

    offset: int
    body: bytes


class TornError(Exception):
    """A segment ends within a frame."""


def read_frames(path: Path) -> Iterator[Frame]:
    """The frames of one segment, its header first.

    Raises TornError at an end that is not whole, RecordingError for a file that is no segment or is damaged.
    """
    with path.open("rb") as file:
        magic = file.read(len(_MAGIC))
        if not _MAGIC.startswith(magic):
            raise RecordingError(f"{path}: not a recording")
        if len(magic) < len(_MAGIC):
            raise TornError(f"{path}: ends within its header")
        size = path.stat().st_size
        while file.tell() < size:
            yield _read_frame(file, path, size)


def _read_frame(file: IO[bytes], path: Path, size: int) -> Frame:
    offset = file.tell()
    torn = TornError(f"{path}: the last {size - offset} bytes are a torn record and were ignored")
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise torn
    length, checksum, head_checksum = _HEAD.unpack(head)
    if crc32(head[: _SUMMED.size]) != head_checksum:
        raise RecordingError(f"{path}: damaged at byte {offset}")
    body = file.read(length)
    if len(body) < length:
        raise torn
    if crc32(body) != checksum:
        raise RecordingError(f"{path}: damaged between bytes {offset} and {file.tell()}")
    return Frame(offset, body)
