"""The output of one request, of all its sequences, on its way to its caller.

The engine's side pushes tokens, at most one per sequence and step, and asks for the reader's turn once; the reader
takes what has come since its last turn as one piece, so a slow one gets fewer and bigger pieces. Both sides run on one
event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from scheduler.core.result import End, EndReason, PromptScores
from scheduler.frontend.errors import RequestError, SequenceEndedError
from scheduler.frontend.sequence_output import Delta, SequenceOutput, TokenLogprob
from scheduler.frontend.turns import Turns
from scheduler.metrics.request_metrics import RequestMetrics

_GOOD_ENDS: Final = (EndReason.STOP, EndReason.LENGTH)
# What waits for a slow reader comes in pieces that gRPC's clients take, 4 MiB by default: a token with twenty log
# probabilities has about 300 bytes.
MAX_PIECE_TOKENS: Final = 2048
_MAX_SCORES_PER_PIECE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """As in the proto of the same name."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float


class Piece(NamedTuple):
    """What is new of a request. deltas: of each sequence that has news, by index. usage: in the last piece only.
    echoed_ids: the prompt's, in the first piece of a request that asks for them. prompt_logprobs: of the prompt's
    tokens from the second on, where they were asked for; all come before the deltas or with the first."""

    deltas: tuple[Delta, ...]
    usage: Usage | None = None
    echoed_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Stream:
    """An async iterator of pieces for one reader; it ends when all sequences have.

    Raises RequestError where a sequence ended badly, after the tokens that all had until then.

    prompt_field: the request's field that the prompt came in. outputs: of the request's sequences by their index.
    arrival_ns: when the request came, on the engine's clock. metrics: where the request is counted. turns: says when
    the reader may take a piece. echo: give the prompt's ids in the first piece. interval: tokens of a sequence that a
    piece waits for, but for the first and the last.
    """

    def __init__(
        self,
        *,
        request_id: str,
        prompt_field: str,
        outputs: tuple[SequenceOutput, ...],
        arrival_ns: int,
        metrics: RequestMetrics,
        turns: Turns,
        echo: bool = False,
        interval: int = 1,
    ) -> None:
        self.request_id = request_id
        self.prompt_field = prompt_field
        self.specs = tuple(output.spec for output in outputs)
        self.arrival_ns = arrival_ns
        self._outputs = outputs
        self._echoed_ids = self.specs[0].prompt if echo else ()
        self._num_open = len(outputs)
        self._metrics = metrics
        self._turns = turns
        self._max_delta = max(1, MAX_PIECE_TOKENS // len(outputs))
        self._interval = min(interval, self._max_delta)
        self._num_scored = 0
        self._prompt_logprobs: deque[TokenLogprob] = deque()
        self._error: RequestError | None = None
        self._exhausted = False
        self._waiter: asyncio.Future[None] | None = None
        self._cached_tokens: int | None = None
        self._started_ns: int | None = None
        self._first_token_ns: int | None = None
        self._last_token_ns: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences that the engine has delivered so far."""
        return sum(output.num_tokens for output in self._outputs)

    @property
    def num_unread(self) -> int:
        """Tokens of all sequences that the reader could have taken and has not."""
        return sum(output.num_unread for output in self._outputs) if self._is_due() else 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come: all sequences have ended, or one of them badly."""
        return not self._num_open or self._error is not None

    @property
    def live_sequence_ids(self) -> dict[int, int]:
        """Ids in the core of the sequences that have not ended, by their index."""
        return {output.index: output.spec.sequence_id for output in self._outputs if output.end is None}

    def push_started(self, index: int, cached_tokens: int, now_ns: int) -> None:
        """Only first admissions count: later ones follow a preemption or a worker's death. What the other sequences
        share with the first is not the prefix cache's doing."""
        if self._started_ns is None:
            self._started_ns = now_ns
            self._metrics.prompt_tokens += len(self.specs[0].prompt)
        if index == 0 and self._cached_tokens is None:
            self._cached_tokens = cached_tokens

    def push_scores(self, scores: PromptScores) -> None:
        """Takes the logprobs of the prompt's next tokens."""
        prompt = self.specs[0].prompt
        for i, logprob in enumerate(scores.logprobs):
            self._num_scored += 1
            top = zip(scores.top_tokens[i], scores.top_logprobs[i], strict=True) if scores.top_tokens else ()
            token_id = prompt[self._num_scored]
            self._prompt_logprobs.append(TokenLogprob(token_id=token_id, logprob=logprob, top=tuple(top)))
        self._wake()

    def push_token(self, index: int, token_id: int, now_ns: int, before_ns: list[int]) -> bool:
        """Takes the next token of a sequence; notes in before_ns when its last one came, 0 if none has. True: it
        completed a stop string; the sequence takes no more, and `push_stop` is to be called when its logprob, too, is
        there."""
        if self._first_token_ns is None:
            self._first_token_ns = now_ns
            self._metrics.time_to_first_token.observe(_seconds(self.arrival_ns, now_ns))
        self._last_token_ns = now_ns
        output = self._outputs[index]
        before_ns.append(output.last_token_ns)
        output.last_token_ns = now_ns
        stopped = output.push_token(token_id)
        if self._waiter is not None and output.is_due(self._interval):
            self._wake()
        return stopped

    def push_logprob(self, index: int, token_id: int, logprob: float, top: tuple[tuple[int, float], ...]) -> None:
        """Belongs to the token of this sequence that was pushed last; dropped if the caller did not ask."""
        self._outputs[index].push_logprob(token_id, logprob, top)

    def push_stop(self, index: int) -> int:
        """Ends a sequence with the token that completed a stop string. Returns the number of its tokens."""
        self._metrics.finished[EndReason.STOP.value] += 1
        self._close_one()
        return self._outputs[index].num_tokens

    def push_end(self, index: int, end: End, why: str = "") -> None:
        """Ends a sequence, and with a bad reason the request. why: what is known of a bad one's cause."""
        output = self._outputs[index]
        self._metrics.finished[end.reason.value] += 1
        if end.reason in _GOOD_ENDS:
            output.push_end(end)
            self._close_one()
            self._wake()
        else:
            self.push_error(SequenceEndedError(end.reason, output.num_tokens, why))

    def push_error(self, error: RequestError) -> None:
        """Ends the request; of several errors the first counts."""
        if self._error is None:
            self._error = error
            for output in self._outputs:
                output.break_off()
        self._wake()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Piece:
        while not self._exhausted:
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            if self._error is not None or self._prompt_logprobs or self._is_due():
                self._wake()
            await waiter
            scores = self._take_scores() if self._prompt_logprobs else ()
            if self._prompt_logprobs:
                return Piece(deltas=(), prompt_logprobs=scores)
            deltas = tuple([output.take(self._max_delta) for output in self._with_news()])
            if self._error is not None:  # most outputs that break off hold nothing back
                deltas = tuple(delta for delta in deltas if delta.says_something)
            if deltas:
                self._exhausted = not self._num_open and not self._with_news()
                echoed_ids, self._echoed_ids = self._echoed_ids, ()
                return Piece(deltas, self._usage() if self._exhausted else None, echoed_ids, scores)
            if scores:
                return Piece(deltas=(), prompt_logprobs=scores)
            if self._error is not None:
                self._exhausted = True
                raise self._error
        raise StopAsyncIteration

    def _is_due(self) -> bool:
        return any(output.is_due(self._interval) for output in self._outputs)

    def _with_news(self) -> list[SequenceOutput]:
        return [output for output in self._outputs if output.has_news]

    def _take_scores(self) -> tuple[TokenLogprob, ...]:
        """Some of what waits; a message must not have all of a long prompt."""
        waiting = self._prompt_logprobs
        return tuple(waiting.popleft() for _ in range(min(len(waiting), _MAX_SCORES_PER_PIECE)))

    def _close_one(self) -> None:
        self._num_open -= 1
        if not self._num_open:
            self._count_times()

    def _count_times(self) -> None:
        """All sequences have ended well, with the update at hand."""
        metrics, started, first, last = self._metrics, self._started_ns, self._first_token_ns, self._last_token_ns
        metrics.e2e_latency.observe(_seconds(self.arrival_ns, last))
        metrics.queue_time.observe(_seconds(self.arrival_ns, started))
        metrics.prefill_time.observe(_seconds(started, first))
        metrics.decode_time.observe(_seconds(first, last))

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.specs[0].prompt),
            cached_tokens=self._cached_tokens or 0,
            completion_tokens=self.num_tokens,
            queue_seconds=_seconds(self.arrival_ns, self._started_ns),
            prefill_seconds=_seconds(self._started_ns, self._first_token_ns),
            decode_seconds=_seconds(self._first_token_ns, self._last_token_ns),
        )

    def _wake(self) -> None:
        if self._waiter is not None:
            self._turns.ask(self._waiter)
            self._waiter = None


def _seconds(begin_ns: int | None, end_ns: int | None) -> float:
    return 0.0 if begin_ns is None or end_ns is None else max(end_ns - begin_ns, 0) / 1e9
