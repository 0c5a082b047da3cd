"""Prints an answer while it arrives, and measures it as the caller sees it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from clients.results import Delta, Usage


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer so far. Times are seconds since `started`, on this side of the connection. usage: the server's, once
    the answer is complete."""

    started: float = field(default_factory=time.monotonic)
    text: str = ""
    num_tokens: int = 0
    first_token: float = 0.0
    last_token: float = 0.0
    usage: Usage | None = None

    def print_all(self, deltas: Iterable[Delta]) -> None:
        """Write each delta's text to stdout as it comes, and reasoning to stderr."""
        for delta in deltas:
            self.add(delta)
            if delta.reasoning:
                print(delta.reasoning, end="", file=sys.stderr, flush=True)
            sys.stdout.write(delta.text)
            sys.stdout.flush()

    def add(self, delta: Delta) -> None:
        """Count a delta as arrived now."""
        if delta.token_ids:
            self.last_token = time.monotonic() - self.started
            if not self.num_tokens:
                self.first_token = self.last_token
        self.num_tokens += len(delta.token_ids)
        self.text += delta.text

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first one; 0 when there is only one. By the server's clock if it has told: several
        messages may have waited here and been read at once."""
        seconds = self.last_token - self.first_token if self.usage is None else self.usage.decode_seconds
        return (self.num_tokens - 1) / seconds if seconds > 0 else 0.0

    @property
    def summary(self) -> str:
        """One line: tokens, time to first token, tokens per second."""
        return (
            f"{self.num_tokens} tokens, time to first token {self.first_token:.3f} s, "
            f"{self.tokens_per_second:.1f} tokens/s"
        )
