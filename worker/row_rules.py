"""What a row's rules for its logits say about its next token: which are masked, and how often each was there already.

Owns the counts of one row, kept up with every token that the row samples, and rebuilt from the tokens of an admission.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from worker.step import FloatColumn, IdColumn, LogitRules, RowFlag, no_ids


class Matcher(Protocol):
    """A row's grammar and where in it the output is."""

    def append(self, token: int) -> None:
        """The output goes on."""
        ...

    def start(self) -> None:
        """The next mask will be asked for."""
        ...

    def allowed(self) -> tuple[npt.NDArray[np.bool_] | None, RowFlag]:
        """As `RowRules.allowed`."""
        ...


class _NoMatcher:
    """Of a grammar on a worker that knows no tokenizer: its row cannot go on, and the others can."""

    def append(self, token: int) -> None:
        pass

    def start(self) -> None:
        pass

    def allowed(self) -> tuple[None, RowFlag]:
        return None, RowFlag.DEAD_END


NO_MATCHER: Matcher = _NoMatcher()


class RowRules:
    """The rules of one row and the tokens that they look at.

    prompt, output: the row's tokens. width: of the logits. matcher: of the grammar, if the rules have one; it has seen
    the output.
    """

    def __init__(
        self,
        rules: LogitRules,
        prompt: Iterable[int],
        output: Iterable[int],
        *,
        width: int,
        matcher: Matcher | None = None,
    ) -> None:
        self.rules = rules
        self.penalises = bool(rules.presence_penalty or rules.frequency_penalty or rules.repetition_penalty != 1)
        self._matcher = matcher
        self._counts = _TokenCounts()
        self._output: list[int] = []
        self._allowed: npt.NDArray[np.bool_] | None = None
        if rules.allowed_token_ids.size:
            self._allowed = np.zeros(width, np.bool_)
            self._allowed[rules.allowed_token_ids] = True
        if rules.repetition_penalty != 1:
            for token in prompt:
                self._counts.add(token, 0)
        for token in output:
            self._record(token)

    def start(self) -> None:
        """A step begins at whose end the row samples."""
        if self._matcher is not None:
            self._matcher.start()

    def append(self, token: int) -> None:
        """The row has sampled a token."""
        self._record(token)
        if self._matcher is not None:
            self._matcher.append(token)

    def _record(self, token: int) -> None:
        self._output.append(token)
        if self.penalises:
            self._counts.add(token, 1)

    def counts(self) -> tuple[IdColumn, FloatColumn]:
        """The distinct tokens that penalties are about, and how often each is in the output."""
        return self._counts.columns()

    def masked_ids(self) -> IdColumn:
        """Tokens that bad words and min_tokens forbid next; one may be named twice."""
        rules, output = self.rules, self._output
        bad = [word[-1] for word in rules.bad_words if len(word) == 1 or _ends_with(output, word[:-1])]
        early = rules.masked_token_ids if len(output) < rules.min_tokens else no_ids()
        return np.concatenate([early, np.array(bad, np.int64)]) if bad else early

    def allowed(self) -> tuple[npt.NDArray[np.bool_] | None, RowFlag]:
        """[width]: what allowed ids and grammar leave, not to be written into; None for all. The flag of a row whose
        grammar has failed. Waits for the grammar."""
        if self._matcher is None:
            return self._allowed, RowFlag.OK
        matching, flag = self._matcher.allowed()
        if matching is None or self._allowed is None:
            return (self._allowed if matching is None else matching), flag
        return matching & self._allowed, flag


def _ends_with(output: list[int], tokens: tuple[int, ...]) -> bool:
    return tuple(output[-len(tokens) :]) == tokens


class _TokenCounts:
    """Distinct tokens and their counts, as growing columns."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.empty(64, np.float32)

    def add(self, token: int, count: int) -> None:
        place = self._index.get(token)
        if place is None:
            place = self._index[token] = len(self._index)
            if place == self._ids.size:
                self._ids = np.resize(self._ids, 2 * place)
                self._counts = np.resize(self._counts, 2 * place)
            self._ids[place], self._counts[place] = token, 0
        self._counts[place] += count

    def columns(self) -> tuple[IdColumn, FloatColumn]:
        size = len(self._index)
        return self._ids[:size], self._counts[:size]
