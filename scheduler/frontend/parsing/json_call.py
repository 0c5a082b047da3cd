"""Reads one tool call, a JSON object with a name and arguments, while it is being written."""

from __future__ import annotations

import json
import re
from typing import Final

_NAME_KEYS: Final = ("name", "type", "id", "function", "arguments", "parameters")
# Any JSON; no number is too large to be looked at.
_JSON: Final = json.JSONDecoder(parse_int=float)
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_FIRST_KEY: Final = re.compile(r'\s*\{\s*"([^"\\]*)"')
# The order that models are taught: the name, then an object of arguments, which is given out as it comes.
_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
# How the object may go on behind the arguments.
_TAIL: Final = re.compile(r'\s*(?:\Z|\}|,\s*(?:["}]|\Z))')


class JsonSpan:
    """Finds the end of a JSON object in text as it comes. broken: what came is not one.

    Only nesting and strings are looked at, and "<", which begins a marker where it is in no string: whether the rest is
    JSON is for the reader of the object to find.
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
            elif character == "<":
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
    """A call as it comes. name: empty until it is known. done: nothing that follows belongs to it, for the object is
    complete or cannot go on so. broken: it is no call; what came is in `raw`. A call whose name is known never breaks:
    the arguments are as the model wrote them."""

    def __init__(self) -> None:
        self.name = ""
        self.raw = ""
        self.done = False
        self.broken = False
        self._object = JsonSpan()
        self._arguments: JsonSpan | None = None
        self._tail = ""  # of the object, behind the arguments

    @property
    def stray(self) -> str:
        """What came behind the arguments and is no further member of the object."""
        members = self._tail.rstrip().removesuffix("}").rstrip().removesuffix(",")
        try:
            _JSON.decode('{"": 0' + members + "}")
        except (ValueError, RecursionError):
            return self._tail
        return ""

    def feed(self, text: str) -> tuple[str, str]:
        """What is new of the arguments, and what follows the object."""
        end = self._object.feed(text)
        own, rest = (text, "") if end is None else (text[:end], text[end:])
        arguments = self._read(own) if self.name else self._read_head(own, whole=end is not None)
        if _TAIL.match(self._tail) is None:  # a brace is missing
            rest, self._tail = self._tail + rest, ""
            self.done = True
        else:
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
        end = 0 if self._arguments is None else self._arguments.feed(text)
        if end is None:
            return text
        self._arguments = None
        self._tail += text[end:]
        return text[:end]

    def _read_whole(self) -> str:
        """An object in another order."""
        try:
            call = _members(self.raw)
            if "function" in call and call["function"].startswith("{"):
                call = _members(call["function"])
        except (ValueError, RecursionError):
            call = {}
        name, arguments = _decoded(call.get("name", "")), call.get("arguments", call.get("parameters", "{}"))
        if not name:
            self.broken = True
            return ""
        self.name = name
        return _decoded(arguments) if arguments.startswith('"') else arguments


def _members(text: str) -> dict[str, str]:
    """The values of an object, each as it is written: to read and write a number again may change it."""
    text = text.strip()
    if not isinstance(_JSON.decode(text), dict):
        raise ValueError
    values: dict[str, str] = {}
    place = _behind_space(text, 1)
    while text[place] != "}":
        key, place = _JSON.raw_decode(text, place)
        begin = _behind_space(text, _behind_space(text, place) + 1)  # a colon between them
        _, end = _JSON.raw_decode(text, begin)
        values[key] = text[begin:end]
        place = _behind_space(text, end)
        if text[place] == ",":
            place = _behind_space(text, place + 1)
    return values


def _behind_space(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    return place if space is None else space.end()


def _decoded(literal: str) -> str:
    """The text of a string of JSON; empty if it is none."""
    try:
        value = json.loads(literal) if literal.startswith('"') else ""
    except ValueError:
        return ""
    return str(value)
