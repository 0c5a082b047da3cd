"""What parsers make of generated text: text for the reader, reasoning, and tool calls, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallPart:
    """What is new of a tool call. index: of the call in its sequence. call_id, name: in the call's first part only."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a piece of text was found to be. tool_calls: at most one part per call."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallPart, ...] = ()

    def __add__(self, later: Parts) -> Parts:
        calls = {part.index: part for part in self.tool_calls}
        for part in later.tool_calls:
            before = calls.get(part.index)
            calls[part.index] = part if before is None else _joined(before, part)
        return Parts(
            text=self.text + later.text, reasoning=self.reasoning + later.reasoning, tool_calls=tuple(calls.values())
        )


NOTHING: Final = Parts()


class OutputParser(Protocol):
    """Sorts the text of one sequence as it comes. What was given out is never taken back."""

    def feed(self, text: str) -> Parts:
        """What is certain now."""

    def flush(self) -> Parts:
        """What was held back, at the end of the sequence."""


def _joined(first: ToolCallPart, second: ToolCallPart) -> ToolCallPart:
    return ToolCallPart(
        index=first.index, call_id=first.call_id, name=first.name, arguments=first.arguments + second.arguments
    )
