"""The commands of a page: its ```console blocks, in which `$ ` begins a command and what follows is its output."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """text: as a shell takes it. output: as documented. span: of the output in the page."""

    text: str
    output: str
    span: tuple[int, int]


def commands(page: str) -> list[Command]:
    """All commands of a page, in its order."""
    found = []
    for block in _BLOCK.finditer(page):
        starts = [match.start(1) for match in re.finditer(r"^\$ (.)", block[1], re.MULTILINE)]
        for start, end in zip(starts, [*(start - 2 for start in starts[1:]), len(block[1])], strict=True):
            text = block[1][start:end]
            length = _length(text)
            begin = block.start(1) + start + length
            output = page[begin : block.start(1) + end]
            found.append(
                Command(text=text[:length].strip(), output=output.strip(), span=(begin, begin + len(output.rstrip())))
            )
    return found


def _length(text: str) -> int:
    """Of the command that a text begins with: to the end of the line on which its quotes are closed and no backslash
    says that it goes on."""
    end = 0
    for line in text.splitlines(keepends=True):
        end += len(line)
        if text[:end].count("'") % 2 == 0 and not line.rstrip().endswith("\\"):
            break
    return end


def json_values(text: str) -> list[Any]:
    """The JSON values that follow each other in a text; none if it is something else."""
    values, decoder = [], json.JSONDecoder()
    try:
        while text := text.lstrip():
            value, end = decoder.raw_decode(text)
            values.append(value)
            text = text[end:]
    except json.JSONDecodeError:
        return []
    return values


def field_names(value: Any) -> set[str]:
    """Names at the top of a JSON object, whichever of protobuf's two spellings a tool prints."""
    return {name.replace("_", "").lower() for name in value} if isinstance(value, dict) else set()
