"""The output of one sequence that its caller has not read yet."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.result import End
from scheduler.core.sequence import SequenceSpec
from scheduler.frontend.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Raw log probability of a token; top: (id, log probability) of the most likely ones at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What is new of one sequence. index: 0 .. n-1. end: STOP or LENGTH, in its last delta and only there."""

    index: int = 0
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    end: End | None = None


class SequenceOutput:
    """Gathers tokens as they come and gives them as one delta. What waits is bounded by max_tokens.

    end: how the sequence ended, None until then. num_tokens: all that came so far. last_token_ns: when the last of them
    did, 0 before the first.
    """

    __slots__ = (
        "_detokenizer",
        "_end_taken",
        "_logprobs",
        "_token_ids",
        "end",
        "index",
        "last_token_ns",
        "num_tokens",
        "spec",
    )

    def __init__(self, *, index: int, spec: SequenceSpec, detokenizer: Detokenizer) -> None:
        self.index = index
        self.spec = spec
        self.end: End | None = None
        self.num_tokens = 0
        self.last_token_ns = 0
        self._detokenizer = detokenizer
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._end_taken = False

    @property
    def has_news(self) -> bool:
        """Whether a delta would say anything."""
        return bool(self._token_ids) or (self.end is not None and not self._end_taken)

    @property
    def num_unread(self) -> int:
        """Tokens that came and were not taken."""
        return len(self._token_ids)

    def push_token(self, token_id: int, now_ns: int) -> int:
        """Takes the next token. Returns the time since the one before in nanoseconds, 0 for the first."""
        self.num_tokens += 1
        self._token_ids.append(token_id)
        gap_ns = now_ns - self.last_token_ns if self.last_token_ns else 0
        self.last_token_ns = now_ns
        return gap_ns

    def push_logprob(self, token_id: int, logprob: float, top: tuple[tuple[int, float], ...]) -> None:
        """Belongs to the token that was pushed last; dropped if the caller did not ask."""
        asked = self.spec.sampling.num_logprobs
        if asked is not None:
            self._logprobs.append(TokenLogprob(token_id=token_id, logprob=logprob, top=top[:asked]))

    def take(self, max_tokens: int) -> Delta:
        """What has come since the last one, the oldest max_tokens of it; the end comes with the last of them."""
        token_ids, self._token_ids = self._token_ids[:max_tokens], self._token_ids[max_tokens:]
        logprobs, self._logprobs = self._logprobs[:max_tokens], self._logprobs[max_tokens:]
        end = None if self._token_ids else self.end
        # The id that ended the sequence is among the ids, not in the text.
        stopped = end is not None and end.stop_token_id is not None
        text = self._detokenizer.feed(token_ids[:-1] if stopped else token_ids)
        if end is not None:
            self._end_taken = True
            text += self._detokenizer.flush()
        return Delta(index=self.index, text=text, token_ids=tuple(token_ids), logprobs=tuple(logprobs), end=end)
