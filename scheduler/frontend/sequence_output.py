"""The output of one sequence that its caller has not read yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from scheduler.core.result import End, EndReason
from scheduler.core.sequence import SequenceSpec
from scheduler.frontend.detokenizer import Detokenizer
from scheduler.frontend.parsing.parts import OutputParser, ToolCallPart
from scheduler.frontend.stop_strings import StopScanner

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Raw log probability of a token; top: (id, log probability) of the most likely ones at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)  # not frozen: one is made per sequence and step, and a frozen one takes twice as long
class Delta:
    """What is new of one sequence. index: 0 .. n-1. end: STOP or LENGTH, in its last delta and only there, with the
    stop string if one ended it. text: without what a parser found to be reasoning or tool calls."""

    text: str
    token_ids: tuple[int, ...]
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    end: End | None = None
    stop_string: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallPart, ...] = ()

    @property
    def says_something(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.text or self.token_ids or self.end or self.reasoning or self.tool_calls)


class SequenceOutput:
    """Gathers tokens as they come and gives them as one delta. What waits is bounded by max_tokens.

    end: how the sequence ended, None until then. num_tokens: all that came so far. last_token_ns: when the last of them
    did, 0 before the first. stop_string: the one that ended it. echo: text that begins the first delta. parser: what
    sorts the text.
    """

    __slots__ = (
        "_broken_off",
        "_detokenizer",
        "_echo",
        "_end_taken",
        "_logprobs",
        "_parser",
        "_token_ids",
        "end",
        "index",
        "last_token_ns",
        "num_tokens",
        "spec",
        "stop_string",
    )

    def __init__(
        self,
        *,
        index: int,
        spec: SequenceSpec,
        detokenizer: Detokenizer,
        echo: str = "",
        parser: OutputParser | None = None,
    ) -> None:
        self.index = index
        self.spec = spec
        self.end: End | None = None
        self.num_tokens = 0
        self.last_token_ns = 0
        self.stop_string: str | None = None
        self._detokenizer = detokenizer
        self._echo = echo
        self._parser = parser
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._end_taken = False
        self._broken_off = False

    @property
    def has_news(self) -> bool:
        """Whether a delta would say anything."""
        return bool(self._token_ids) or self._broken_off or (self.end is not None and not self._end_taken)

    def is_due(self, interval: int) -> bool:
        """Whether there is enough for a delta, where all but the first and the last wait for so many tokens."""
        unread = len(self._token_ids)
        begins = 0 < unread == self.num_tokens
        return begins or unread >= interval or self._broken_off or (self.end is not None and not self._end_taken)

    @property
    def num_unread(self) -> int:
        """Tokens that came and were not taken."""
        return len(self._token_ids)

    def push_token(self, token_id: int) -> bool:
        """Takes the next token. True: it completed a stop string, and the sequence has ended with it."""
        self.num_tokens += 1
        self._token_ids.append(token_id)
        return False

    def push_logprob(self, token_id: int, logprob: float, top: tuple[tuple[int, float], ...]) -> None:
        """Belongs to the token that was pushed last; dropped if the caller did not ask."""
        asked = self.spec.sampling.num_logprobs
        if asked is not None:
            self._logprobs.append(TokenLogprob(token_id=token_id, logprob=logprob, top=top[:asked]))

    def push_end(self, end: End) -> None:
        """Ends the sequence."""
        self.end = end

    def break_off(self) -> None:
        """No end comes, for the request fails: what is held back is text all the same."""
        self._broken_off = self.end is None and self.num_tokens > 0

    def take(self, max_tokens: int) -> Delta:
        """What has come since the last one, the oldest max_tokens of it; the end comes with the last of them."""
        token_ids, self._token_ids = _cut(self._token_ids, max_tokens)
        logprobs, self._logprobs = _cut(self._logprobs, max_tokens)
        end = None if self._token_ids else self.end
        last = end is not None or (self._broken_off and not self._token_ids)
        text = self._take_text(token_ids, end, last)
        self._end_taken = end is not None
        self._broken_off = self._broken_off and not last
        if self._parser is not None:
            return self._parsed(self._parser, text, tuple(token_ids), tuple(logprobs), end, last)
        if self._echo:
            text, self._echo = self._echo + text, ""
        return Delta(text, tuple(token_ids), self.index, tuple(logprobs), end, self.stop_string if end else None)

    def _parsed(
        self,
        parser: OutputParser,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...],
        end: End | None,
        last: bool,
    ) -> Delta:
        parts = parser.feed(text)
        if last:
            parts += parser.flush()
        echo, self._echo = self._echo, ""
        return Delta(
            text=echo + parts.text,
            token_ids=token_ids,
            index=self.index,
            logprobs=logprobs,
            end=end,
            stop_string=self.stop_string if end else None,
            reasoning=parts.reasoning,
            tool_calls=parts.tool_calls,
        )

    def _take_text(self, token_ids: list[int], end: End | None, last: bool) -> str:
        """The text of the ids; the id that ended the sequence is among the ids, not in the text."""
        if not last:
            return self._detokenizer.feed(token_ids)
        stopped = end is not None and end.stop_token_id is not None
        return self._detokenizer.feed(token_ids[:-1] if stopped else token_ids) + self._detokenizer.flush()


def _cut(items: list[_T], size: int) -> tuple[list[_T], list[_T]]:
    """The first so many and the others; nearly always there are none."""
    return (items, []) if len(items) <= size else (items[:size], items[size:])


class WatchedOutput(SequenceOutput):
    """Of a sequence with stop strings: makes text when a token comes, not when it is read, so that the sequence is
    ended at once however slow its reader is.

    scanner: of its stop strings. min_tokens: a stop string counts if it is complete later than with this many tokens.
    """

    __slots__ = ("_min_tokens", "_scanner", "_text")

    def __init__(
        self,
        *,
        index: int,
        spec: SequenceSpec,
        detokenizer: Detokenizer,
        scanner: StopScanner,
        min_tokens: int = 0,
        echo: str = "",
        parser: OutputParser | None = None,
    ) -> None:
        super().__init__(index=index, spec=spec, detokenizer=detokenizer, echo=echo, parser=parser)
        self._scanner = scanner
        self._min_tokens = min_tokens
        self._text = ""

    def push_token(self, token_id: int) -> bool:
        super().push_token(token_id)
        if token_id in self.spec.stop_token_ids:
            return False  # it ends the sequence, and has no text
        return self._scan(self._detokenizer.feed((token_id,)))

    def push_end(self, end: End) -> None:
        """The mark of an incomplete character may complete a stop string, too."""
        super().push_end(end)
        if not self._scan(self._detokenizer.flush()):
            self._text += self._scanner.flush()

    def break_off(self) -> None:
        super().break_off()
        if self._broken_off:
            self._text += self._scanner.feed(self._detokenizer.flush(), counts=False) + self._scanner.flush()

    def _scan(self, text: str) -> bool:
        self._text += self._scanner.feed(text, counts=self.num_tokens > self._min_tokens)
        if self._scanner.matched is None:
            return False
        self.stop_string = self._scanner.matched
        self.end = End(sequence_id=self.spec.sequence_id, reason=EndReason.STOP, num_output_tokens=self.num_tokens)
        return True

    def _take_text(self, token_ids: list[int], end: End | None, last: bool) -> str:
        text, self._text = self._text, ""
        return text
