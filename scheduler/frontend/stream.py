"""The output of one sequence on its way to its caller.

The engine's side pushes tokens, at most one per step, and wakes the reader once; the reader takes all that has come
since its last turn as one delta, so a slow one gets fewer and bigger deltas. What waits is bounded by max_tokens. Both
sides run on one event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from scheduler.core.result import End, EndReason
from scheduler.core.sequence import SequenceSpec
from scheduler.frontend.detokenizer import Detokenizer
from scheduler.frontend.errors import RequestError, SequenceEndedError

_GOOD_ENDS: Final = (EndReason.STOP, EndReason.LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Raw log probability of a token; top: (id, log probability) of the most likely ones at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """As in the proto of the same name."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What is new. end and usage are set in the last one, and only there; end is STOP or LENGTH."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    end: End | None = None
    usage: Usage | None = None


class Stream:
    """An async iterator of deltas for one reader. Raises RequestError where the sequence ended badly, after the tokens
    that it had until then."""

    def __init__(self, *, request_id: str, spec: SequenceSpec, detokenizer: Detokenizer, arrival_ns: int) -> None:
        self.request_id = request_id
        self.spec = spec
        self._detokenizer = detokenizer
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._end: End | None = None
        self._error: RequestError | None = None
        self._exhausted = False
        self._waiter: asyncio.Future[None] | None = None
        self._cached_tokens = 0
        self._num_tokens = 0
        self._arrival_ns = arrival_ns
        self._started_ns: int | None = None
        self._first_token_ns: int | None = None
        self._last_token_ns: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that the engine has delivered so far."""
        return self._num_tokens

    @property
    def arrival_ns(self) -> int:
        """When the request came, on the engine's clock."""
        return self._arrival_ns

    def push_started(self, cached_tokens: int, now_ns: int) -> None:
        """Only the first admission counts: later ones follow a preemption or a worker's death."""
        if self._started_ns is None:
            self._cached_tokens = cached_tokens
            self._started_ns = now_ns

    def push_token(self, token_id: int, now_ns: int) -> None:
        if self._first_token_ns is None:
            self._first_token_ns = now_ns
        self._last_token_ns = now_ns
        self._num_tokens += 1
        self._token_ids.append(token_id)
        self._wake()

    def push_logprob(self, token_id: int, logprob: float, top: tuple[tuple[int, float], ...]) -> None:
        """Belongs to the token that was pushed last; dropped if the caller did not ask."""
        asked = self.spec.sampling.num_logprobs
        if asked is not None:
            self._logprobs.append(TokenLogprob(token_id=token_id, logprob=logprob, top=top[:asked]))

    def push_end(self, end: End) -> None:
        if end.reason in _GOOD_ENDS:
            self._end = end
        else:
            self._error = SequenceEndedError(end.reason, self._num_tokens)
        self._wake()

    def push_error(self, error: RequestError) -> None:
        self._error = error
        self._wake()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        if self._exhausted:
            raise StopAsyncIteration
        while not (self._token_ids or self._end or self._error):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error and not self._token_ids:
            self._exhausted = True
            raise self._error
        return self._take()

    def _take(self) -> Delta:
        token_ids, self._token_ids = self._token_ids, []
        logprobs, self._logprobs = self._logprobs, []
        end = self._end
        # The id that ended the sequence is among the ids, not in the text.
        stopped = end is not None and end.stop_token_id is not None
        text = self._detokenizer.feed(token_ids[:-1] if stopped else token_ids)
        if end is not None:
            self._exhausted = True
            text += self._detokenizer.flush()
        return Delta(
            text=text,
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            end=end,
            usage=None if end is None else self._usage(),
        )

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.spec.prompt),
            cached_tokens=self._cached_tokens,
            completion_tokens=self._num_tokens,
            queue_seconds=_seconds(self._arrival_ns, self._started_ns),
            prefill_seconds=_seconds(self._started_ns, self._first_token_ns),
            decode_seconds=_seconds(self._first_token_ns, self._last_token_ns),
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _seconds(begin_ns: int | None, end_ns: int | None) -> float:
    return 0.0 if begin_ns is None or end_ns is None else max(end_ns - begin_ns, 0) / 1e9
