"""Rows of the outcome: what was measured, beside what it is to be compared with in the same run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line. peer: what the value beside it is, in the same unit. ratio: how good this is, 1 being as good as the
    peer and more being better; None where there is no such thing. note: more of it, or why there is no value."""

    part: str
    what: str
    value: float | None = None
    unit: str = ""
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    note: str = ""


class Rows:
    """A file of rows, one JSON object a line, written as they come: what a part measured before it ended too early
    counts all the same."""

    def __init__(self, path: Path, part: str) -> None:
        self._path = path
        self._part = part

    def add(
        self,
        what: str,
        value: float | None = None,
        unit: str = "",
        *,
        peer: str = "",
        peer_value: float | None = None,
        ratio: float | None = None,
        note: str = "",
    ) -> None:
        row = Row(
            part=self._part,
            what=what,
            value=value,
            unit=unit,
            peer=peer,
            peer_value=peer_value,
            ratio=ratio,
            note=note,
        )
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    def compare(self, what: str, value: float, unit: str, peer: str, peer_value: float, *, note: str = "") -> None:
        """A row with its ratio."""
        self.add(what, value, unit, peer=peer, peer_value=peer_value, ratio=_ratio(value, unit, peer_value), note=note)


def read_rows(path: Path) -> list[Row]:
    """What was written so far; nothing if nothing was."""
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def comparisons(rows: list[Row]) -> list[Row]:
    """The worker's runner beside the peer, and the whole path beside the runner, where all were measured."""
    by_name = {(row.part, row.what): row for row in rows if row.value is not None}
    compared = []
    for part, peer in (("model", "peer-transformers"), ("served", "model")):
        for (of, what), ours in by_name.items():
            theirs = by_name.get((peer, what))
            if of != part or theirs is None or not ours.value or not theirs.value:
                continue
            ratio = _ratio(ours.value, ours.unit, theirs.value)
            compared.append(replace(ours, part=f"{part} /", peer=peer, peer_value=theirs.value, ratio=ratio))
    return compared


def table(rows: list[Row]) -> str:
    """For people."""
    lines = [f"{'':<19}{'':<46}{'measured':>16}  {'beside it':<42}{'ratio':>6}"]
    for row in rows:
        value = row.note if row.value is None else f"{_short(row.value)} {row.unit}"
        beside = row.peer if row.peer_value is None else f"{_short(row.peer_value)} {row.unit} {row.peer}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        more = "" if row.value is None else row.note
        lines.append(f"{row.part:<19}{row.what:<46}{value:>16}  {beside:<42}{ratio:>6}  {more}".rstrip())
    return "\n".join(lines)


def one_line(error: Exception) -> str:
    """What a row says of it."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def _ratio(value: float, unit: str, peer_value: float) -> float:
    """Of times the shorter is the better, of rates the higher."""
    return peer_value / value if unit == "ms" else value / peer_value


def _short(value: float) -> str:
    """Three significant digits, and no exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
