"""What is asked of a server: a number of streams, held or replaced as they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """steps_per_second: of each stream. seconds: of the steady time that is measured, after warm_up_s.

    replace: tokens of a request, after which a stream begins its next one; 0: one request per stream, for all the time.
    """

    streams: int
    steps_per_second: float
    seconds: float
    warm_up_s: float
    replace: int = 0

    @property
    def whole_s(self) -> float:
        """How long streams are begun, and held."""
        return self.warm_up_s + self.seconds + 1

    def num_tokens(self, stream: int, request: int) -> int:
        """Of a stream's request. The first ones that are replaced end one after the other, as in a server that has run
        for long."""
        if not self.replace:
            return int(self.whole_s * self.steps_per_second)
        return 1 + stream * self.replace // self.streams if request == 0 else self.replace


class Arrival(NamedTuple):
    """A piece of a request's output. step: of its last token."""

    at_s: float
    num_tokens: int
    step: int
