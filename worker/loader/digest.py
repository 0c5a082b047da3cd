"""Fingerprints of a model's files.

The weights digest is part of every prefix cache key: two workers that answer the same one may share what was computed.
Hashing all of a large checkpoint would take longer than loading it, so a file is fingerprinted by its size, its
header (names, types, shapes and offsets of all tensors, and for GGUF all metadata) and evenly spaced samples of the
rest. That tells apart files that differ by training or quantisation, which change nearly every byte; it is no defence
against someone who edits single values on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_SAMPLES = 64
_SAMPLE_BYTES = 16 * 1024


def weights_digest(files: Iterable[tuple[Path, int]]) -> bytes:
    """SHA-256 over the files in order, each with the length of its header in bytes. File names do not count.

    Per file: size (8 bytes, little-endian), header, then 64 samples of 16 KiB at even distances, the first right behind
    the header and the last at the end of the file. A file shorter than its samples is hashed whole.
    """
    digest = hashlib.sha256()
    for path, header_bytes in files:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            digest.update(file.read(header_bytes))
            span = size - header_bytes - _SAMPLE_BYTES
            if span <= _SAMPLES * _SAMPLE_BYTES:
                digest.update(file.read())
                continue
            for sample in range(_SAMPLES):
                file.seek(header_bytes + span * sample // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
