"""Reads one tool call, a JSON object with a name and arguments, while it is being written."""

from __future__ import annotations

import json
import re
from typing import Final

_NAME_KEYS: Final = ("name", "type", "id", "function", "arguments", "parameters")
_FIRST_KEY: Final = re.compile(r'\s*\{\s*"([^"\\]*)"')
# The order that models are taught: the name, then an object of arguments, which is given out as it comes.
_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class JsonSpan:
    """Finds the end of a JSON object in text as it comes. broken: what came is not one.

    Only nesting and strings are looked at: whether the rest is JSON is for the reader of the object to find.
    """

    def __init__(self) -> None:
        self.broken = False
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """How many characters belong to it, once its end or what breaks it is among them."""
        for place, character in enumerate(text):
            if self._in_string:
                self._step_in_string(character)
            elif not self._closers and character != "{":
                if not character.isspace():
                    self.broken = True
                    return place
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._closers.append("}" if character == "{" else "]")
            elif character in "}]":
                if self._closers.pop() != character:
                    self.broken = True
                    return place
                if not self._closers:
                    return place + 1
        return None

    def _step_in_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False


class JsonCall:
    """A call as it comes. name: empty until it is known. done: the object is complete. broken: it is no call; what came
    is in `raw`. A call whose name is known never breaks: the arguments are as the model wrote them."""

    def __init__(self) -> None:
        self.name = ""
        self.raw = ""
        self.done = False
        self.broken = False
        self._object = JsonSpan()
        self._arguments: JsonSpan | None = None

    def feed(self, text: str) -> tuple[str, str]:
        """What is new of the arguments, and what follows the object."""
        end = self._object.feed(text)
        own, rest = (text, "") if end is None else (text[:end], text[end:])
        arguments = self._read(own) if self.name else self._read_head(own, whole=end is not None)
        self.done = end is not None and bool(self.name)
        return arguments, rest

    def _read_head(self, text: str, *, whole: bool) -> str:
        self.raw += text
        if head := _HEAD.match(self.raw):
            self.name = _decoded(head[1])
            if self.name:
                self._arguments = JsonSpan()
                return self._read(self.raw[head.end() :])
        if whole:
            return self._read_whole()
        first = _FIRST_KEY.match(self.raw)
        self.broken = first is not None and first[1] not in _NAME_KEYS
        return ""

    def _read(self, text: str) -> str:
        """The part of the text that belongs to the arguments."""
        if self._arguments is None:
            return ""
        end = self._arguments.feed(text)
        if end is not None:
            self._arguments = None
        return text[:end]

    def _read_whole(self) -> str:
        """An object in another order."""
        try:
            call = json.loads(self.raw)
        except (ValueError, RecursionError):
            call = {}
        function = call.get("function")
        if isinstance(function, dict):
            call = function
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
        if not isinstance(name, str) or not name:
            self.broken = True
            return ""
        self.name = name
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _decoded(string: str) -> str:
    try:
        return str(json.loads(string))
    except ValueError:
        return ""
