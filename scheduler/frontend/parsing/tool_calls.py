"""Finds tool calls in generated text, in the formats that models are taught.

Each parser is a small state machine over a buffer: a state takes from the buffer what it is certain of. What looks like
a call and turns out to be none is text, down to its marker.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable
from typing import ClassVar, Final

from scheduler.frontend.parsing.json_call import JsonCall, JsonSpan
from scheduler.frontend.parsing.parts import NOTHING, Parts, ToolCallPart

_ID_ALPHABET: Final = string.ascii_letters + string.digits
_ID_LENGTH: Final = 9  # what Mistral's templates ask for; others take any


def held_back(text: str, marker: str) -> int:
    """How many characters at the end of the text begin the marker."""
    longest = min(len(text), len(marker) - 1)
    return next((length for length in range(longest, 0, -1) if marker.startswith(text[-length:])), 0)


class ToolCallParser:
    """What the formats share. markers: what begins a call anywhere in the text. special: what must be in the text that
    is parsed, even where it is a special token and the reader is to see none of those. closing: what ends a call, if
    anything does."""

    markers: ClassVar[tuple[str, ...]]
    closing: ClassVar[str] = ""
    special: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._buffer = ""
        self._parts = NOTHING
        self._state: Callable[[], bool] = self._in_text
        self._call = JsonCall()
        self._opened = ""  # what came before the object of the call at hand
        self._num_calls = 0

    def feed(self, text: str) -> Parts:
        """As `OutputParser`."""
        self._buffer += text
        while self._state():
            pass
        return self._take()

    def flush(self) -> Parts:
        """As `OutputParser`. An unfinished call that has no name yet is text."""
        if self._state == self._in_call:
            self._emit(text=self._call.stray if self._call.name else self._opened + self._call.raw)
        if self._state != self._after_call or not self.closing.startswith(self._buffer):
            self._emit(text=self._buffer)
        self._buffer = ""
        return self._take()

    # -- states: each returns whether there may be more to do ---------------------------------------------------------

    def _in_text(self) -> bool:
        found = [(place, marker) for marker in self.markers if (place := self._buffer.find(marker)) >= 0]
        if not found:
            given = len(self._buffer) - max(held_back(self._buffer, marker) for marker in self.markers)
            self._emit(text=self._buffer[:given])
            self._buffer = self._buffer[given:]
            return False
        place, marker = min(found)
        self._emit(text=self._buffer[:place])
        self._buffer = self._buffer[place + len(marker) :]
        self._on_marker(marker)
        return True

    def _in_call(self) -> bool:
        named = bool(self._call.name)
        arguments, self._buffer = self._call.feed(self._buffer)
        if self._call.broken:
            self._buffer = self._call.raw + self._buffer
            self._emit(text=self._opened)
            self._state = self._as_text
            return True
        if self._call.name and not named:
            self._emit_call(self._call.name)
        if arguments:
            self._emit_arguments(arguments)
        if self._call.done:
            self._emit(text=self._call.stray)
            self._state = self._after_call
        return self._call.done

    def _after_call(self) -> bool:
        """Between a call and what follows it; nothing of it is text."""
        raise NotImplementedError

    def _as_text(self) -> bool:
        """What was taken for a call: at least its first character is text."""
        self._emit(text=self._buffer[:1])
        self._buffer = self._buffer[1:]
        self._state = self._in_text
        return True

    def _on_marker(self, marker: str) -> None:
        self._begin_call(marker)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _begin_call(self, opened: str) -> None:
        self._call, self._opened = JsonCall(), opened
        self._state = self._in_call

    def _skip(self, characters: str) -> None:
        self._buffer = self._buffer.lstrip(characters)

    def _emit(self, *, text: str = "") -> None:
        self._parts += Parts(text=text)

    def _emit_call(self, name: str) -> None:
        call_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
        self._parts += Parts(tool_calls=(ToolCallPart(index=self._num_calls, call_id=call_id, name=name),))
        self._num_calls += 1

    def _emit_arguments(self, arguments: str) -> None:
        self._parts += Parts(tool_calls=(ToolCallPart(index=self._num_calls - 1, arguments=arguments),))

    def _take(self) -> Parts:
        parts, self._parts = self._parts, NOTHING
        return parts


_SPACE: Final = " \t\r\n"


class HermesParser(ToolCallParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them: Hermes, Qwen 2.5, Qwen 3."""

    markers = ("<tool_call>",)
    closing = "</tool_call>"
    special = (*markers, closing)

    def _after_call(self) -> bool:
        self._skip(_SPACE)
        if not self._buffer or (self.closing.startswith(self._buffer) and self._buffer != self.closing):
            return False
        if self._buffer.startswith(self.closing):
            self._buffer = self._buffer[len(self.closing) :]
            return True
        if held_back(self._buffer, self.markers[0]) == len(self._buffer):
            return False
        self._state = self._in_text
        return True


class Llama3Parser(ToolCallParser):
    """Llama 3.1 and later: all of the answer is `{"name": ..., "parameters": {...}}`, or several, `;` between them.

    The object may come after `<|python_tag|>`, then also behind text.
    """

    markers = special = ("<|python_tag|>",)

    def __init__(self) -> None:
        super().__init__()
        self._state = self._at_start

    def _at_start(self) -> bool:
        stripped = self._buffer.lstrip(_SPACE)
        if not stripped:
            return False
        if stripped.startswith("{"):
            self._begin_call(self._buffer[: len(self._buffer) - len(stripped)])
            self._buffer = stripped
        else:
            self._state = self._in_text
        return True

    def _after_call(self) -> bool:
        self._skip(_SPACE + ";")
        if not self._buffer or held_back(self._buffer, self.markers[0]) == len(self._buffer):
            return False
        if self._buffer.startswith("{"):
            self._begin_call("")
        else:
            self._state = self._in_text
        return True


_MISTRAL_HEAD: Final = re.compile(r"([\w.-]*)\s*(?:\[[\w\[\]]*\s*)?")


class MistralParser(ToolCallParser):
    """`[TOOL_CALLS]` and then a JSON array of calls, or `name[ARGS]{...}`, `name{...}`: Mistral, by age."""

    markers = ("[TOOL_CALLS]",)
    special = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")

    def __init__(self) -> None:
        super().__init__()
        self._arguments = JsonSpan()
        self._in_array = False

    def _on_marker(self, marker: str) -> None:
        self._opened = marker
        self._state = self._at_marker

    def _at_marker(self) -> bool:
        self._opened += self._buffer[: len(self._buffer) - len(self._buffer.lstrip(_SPACE))]
        self._skip(_SPACE)
        if not self._buffer:
            return False
        self._in_array = self._buffer.startswith("[")
        if self._in_array:
            self._buffer = self._buffer[1:]
            self._begin_call(self._opened + "[")
        else:
            self._state = self._in_name
        return True

    def _in_name(self) -> bool:
        head, brace, _ = self._buffer.partition("{")
        name = _MISTRAL_HEAD.fullmatch(head)
        if name is None or (brace and not name[1]):
            self._emit(text=self._opened)
            self._state = self._as_text if self._buffer else self._in_text
            return True
        if not brace:
            return False
        self._emit_call(name[1])
        place = len(head)
        self._buffer = self._buffer[place:]
        self._arguments = JsonSpan()
        self._state = self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        end = self._arguments.feed(self._buffer)
        arguments = self._buffer[:end]
        self._buffer = "" if end is None else self._buffer[end:]
        if arguments:
            self._emit_arguments(arguments)
        if end is None:
            return False
        self._state = self._after_call
        return True

    def flush(self) -> Parts:
        if self._state in (self._at_marker, self._in_name):
            self._emit(text=self._opened)
        return super().flush()

    def _after_call(self) -> bool:
        self._skip(_SPACE)
        if not self._buffer or held_back(self._buffer, self.markers[0]) == len(self._buffer):
            return False
        if self._in_array and self._buffer[0] in ",]":
            self._in_array = self._buffer[0] == ","
            self._buffer = self._buffer[1:]
            if self._in_array:
                self._begin_call("")
        else:
            self._state = self._in_text
        return True


TOOL_CALL_PARSERS: Final[dict[str, type[ToolCallParser]]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3Parser,
    "mistral": MistralParser,
}
