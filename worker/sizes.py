"""Sizes of memory as people write them."""

from __future__ import annotations

import re

GIB = 1 << 30

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": GIB, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]iB|)")


def parse_size(text: str) -> int:
    """Bytes, from a number of them or a number and a unit: "4294967296", "4GiB", "1.5 GiB". Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (not match[2] and "." in match[1]):
        raise ValueError(f"must be a number of bytes, or a number and KiB, MiB, GiB or TiB, is {text!r}")
    return int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
