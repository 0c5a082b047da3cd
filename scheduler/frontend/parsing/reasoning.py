"""Finds the reasoning that a model writes in front of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scheduler.frontend.parsing.parts import Parts
from scheduler.frontend.parsing.tool_calls import held_back

BEGIN: Final = "<think>"
END: Final = "</think>"
REASONING_PARSERS: Final = ("think",)


class ReasoningParser:
    """`<think>...</think>` at the start of the text: Qwen 3, QwQ, DeepSeek R1 and others. Space behind either marker is
    dropped.

    inside: the prompt has written the first marker already.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._buffer = ""
        self._text = ""
        self._reasoning = ""
        self._state: Callable[[], bool] = self._begin if inside else self._before

    def feed(self, text: str) -> Parts:
        """As `OutputParser`."""
        self._buffer += text
        while self._state():
            pass
        return self._take()

    def flush(self) -> Parts:
        """As `OutputParser`."""
        if self._state == self._inside:
            self._reasoning += self._buffer
        elif self._state == self._before:
            self._text += self._buffer
        self._buffer = ""
        return self._take()

    def _before(self) -> bool:
        start = self._buffer.lstrip()
        if start.startswith(BEGIN):
            self._buffer = start[len(BEGIN) :]
            self._state = self._begin
        elif BEGIN.startswith(start):
            return False
        else:
            self._state = self._after
        return True

    def _begin(self) -> bool:
        self._buffer = self._buffer.lstrip()
        self._state = self._inside if self._buffer else self._begin
        return bool(self._buffer)

    def _inside(self) -> bool:
        place = self._buffer.find(END)
        if place < 0:
            given = len(self._buffer) - held_back(self._buffer, END)
            self._reasoning += self._buffer[:given]
            self._buffer = self._buffer[given:]
            return False
        self._reasoning += self._buffer[:place]
        self._buffer = self._buffer[place + len(END) :]
        self._state = self._end
        return True

    def _end(self) -> bool:
        self._buffer = self._buffer.lstrip()
        self._state = self._after if self._buffer else self._end
        return bool(self._buffer)

    def _after(self) -> bool:
        self._text += self._buffer
        self._buffer = ""
        return False

    def _take(self) -> Parts:
        parts = Parts(text=self._text, reasoning=self._reasoning)
        self._text = self._reasoning = ""
        return parts
