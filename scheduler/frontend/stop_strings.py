"""Finds stop strings in text as it comes, and holds back only what may yet be cut off.

One automaton watches for all strings of a request at once, one transition per character however many strings there are.
Source: Aho, Corasick, "Efficient string matching: an aid to bibliographic search", CACM 18 (1975).

Invariants: the state stands for the longest end of the text that begins a stop string, so what is held back is exactly
the part that the next characters may turn into one; a character that was given out is never taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_ROOT: Final = 0


class StopStrings:
    """The automaton of a request's stop strings; immutable, shared by its sequences.

    The string that is complete first wins; of those that are complete with the same character, the first in the list.
    """

    def __init__(self, strings: Sequence[str], *, count_from_start: bool = True) -> None:
        """strings: at least one, none empty. count_from_start: False if the first completions may not count."""
        self.strings = tuple(strings)
        self.first_characters = frozenset(string[0] for string in self.strings)
        self._next: list[dict[str, int]] = [{}]
        self._fail = [_ROOT]
        # Per state: the index of the string that is complete there, or -1; and the characters to hold back.
        self.complete = [-1]
        self.held = [0]
        for index in _undominated(self.strings, count_from_start):
            self._insert(index)
        self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while (following := self._next[state].get(character)) is None:
            if state == _ROOT:
                return _ROOT
            state = self._fail[state]
        return following

    def _insert(self, index: int) -> None:
        state = _ROOT
        for character in self.strings[index]:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._fail.append(_ROOT)
                self.complete.append(-1)
                self.held.append(self.held[state] + 1)  # the depth, until `_link` is done with the state
            state = following
        self.complete[state] = index

    def _link(self) -> None:
        """Breadth first, so that the failure state, which is nearer to the root, is done before its users."""
        waiting = deque([_ROOT])
        depths = list(self.held)
        while waiting:
            state = waiting.popleft()
            for character, following in self._next[state].items():
                waiting.append(following)
                if state != _ROOT:
                    self._fail[following] = self.step(self._fail[state], character)
                fail = self._fail[following]
                own, shorter = self.complete[following], self.complete[fail]
                if shorter >= 0 and (own < 0 or shorter < own):
                    self.complete[following] = shorter
                self.held[following] = depths[following] if self._next[following] else self.held[fail]


class StopScanner:
    """The text of one sequence on its way through the automaton. include: keep the stop string in the text.

    matched: the stop string that was found, None until then; after that there is no more text.
    """

    __slots__ = ("_held_back", "_include", "_state", "_stops", "matched")

    def __init__(self, stops: StopStrings, *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._state = _ROOT
        self._held_back = ""
        self.matched: str | None = None

    def feed(self, text: str, *, counts: bool = True) -> str:
        """The text that may be given out now. counts: whether a string that this text completes ends the sequence."""
        stops, state = self._stops, self._state
        if self.matched is not None:
            return ""
        if state == _ROOT and stops.first_characters.isdisjoint(text):
            return text
        for position, character in enumerate(text, start=1):
            state = stops.step(state, character)
            if stops.complete[state] >= 0 and counts:
                return self._match(stops.strings[stops.complete[state]], text[:position])
        self._state = state
        return self._give(self._held_back + text, stops.held[state])

    def flush(self) -> str:
        """What was held back, at the end of a sequence that no stop string ended."""
        return self._give(self._held_back, 0)

    def _match(self, string: str, text: str) -> str:
        self.matched = string
        whole = self._held_back + text
        self._held_back = ""
        return whole if self._include else whole[: len(whole) - len(string)]

    def _give(self, text: str, num_held: int) -> str:
        """Where stop strings stay in the text nothing is ever cut before what is there, so nothing is held back."""
        given = len(text) if self._include else len(text) - num_held
        self._held_back = text[given:]
        return text[:given]


@lru_cache(maxsize=256)
def compile_stop_strings(strings: tuple[str, ...], *, count_from_start: bool = True) -> StopStrings:
    """The automaton of these strings; callers tend to send the same ones again and again."""
    return StopStrings(strings, count_from_start=count_from_start)


def _undominated(strings: tuple[str, ...], count_from_start: bool) -> list[int]:
    """Indexes of the strings that can win; for the others nothing need be held back.

    A string never wins if it ends with one of an earlier place in the list, or holds another one before its end: that
    is complete earlier, and wins unless it came too early to count.
    """
    return [
        index
        for index, string in enumerate(strings)
        if not any(string.endswith(earlier) for earlier in strings[:index])
        and not (count_from_start and any(other in string[:-1] for other in strings))
    ]
