"""Columns of text for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows under a header, numbers to the right, each column as wide as it must be."""
    cells = [list(row) for row in rows]
    widths = [
        max(len(name), *(len(str(row[i])) for row in cells)) if cells else len(name) for i, name in enumerate(header)
    ]
    right = [bool(cells) and all(isinstance(row[i], (int, float)) for row in cells) for i in range(len(header))]
    for row in (header, *cells):
        shown = (str(cell).rjust(w) if r else str(cell).ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
        print("  ".join(shown).rstrip())
