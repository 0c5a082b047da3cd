"""The front end: from a request to a stream of deltas.

Owns the live requests, by id, and their sequences. It talks to the engine through the values of `scheduler.messages`
alone: `send` takes them down, `deliver` brings one update per step up. Every method runs on one event loop; only the
tokenisation of long prompts leaves it, for threads of its own. One that still waits for a thread when its caller goes
is not begun.

Invariants: a request is in `_requests` from its arrival until all its sequences have ended, one has ended badly, it was
refused or its caller has gone; `num_live` counts it until its caller has left it. A sequence is in `_places` from its
Add until its end, its refusal, its Finish or its Cancel, whichever comes first, and never without its request.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from scheduler.core.result import EndReason
from scheduler.core.sequence import SequenceSpec
from scheduler.frontend.directory import LiveRequest
from scheduler.frontend.errors import (
    BusyError,
    DrainingError,
    DuplicateRequestError,
    RejectedError,
    ShutdownError,
    UnknownModelError,
    status_of,
)
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.outputs import make_outputs
from scheduler.frontend.parsing.choice import NO_PARSERS, ParserDefaults, choose_parsers
from scheduler.frontend.prompts import EncodedPrompt, encode_prompt, prompt_size
from scheduler.frontend.request import GenerateInput, Prompt
from scheduler.frontend.sampling_defaults import SamplingDefaults
from scheduler.frontend.stream import Stream
from scheduler.frontend.structured_output import GrammarChecker
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.frontend.turns import Turns
from scheduler.frontend.validation import ValidatedRequest, validate
from scheduler.messages import Add, Cancel, Finish, Message, StepUpdate
from scheduler.metrics.request_metrics import RequestMetrics

_CLOCKS_APART_NS: Final = 50_000_000
# Tokenising runs at 1 to 5 characters per microsecond; below this a thread costs more than it saves the event loop.
_INLINE_CHARACTERS: Final = 4096
# Few, so that prompts do not take the processors from the engine; two, so that a huge one does not hold up all others.
_TOKENISING_THREADS: Final = 2
_SEED_BITS: Final = 64


class Frontend:
    """See the module.

    send: hands a message to the engine; must not block, and is called on the event loop. clock_ns: the engine's clock.
    why_unavailable: what is known of why there is no worker, for those whose request fails over it; may be empty.
    max_preparing: requests that are being tokenised, or wait to be, before more are refused. sequence_ids: gives the
    sequences their ids, 1 and on by default.
    parsers: how tool calls and reasoning are found in the output of chats that do not say.
    defaults: of sampling fields that a request leaves open; None: the model's.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        model: ModelInfo,
        send: Callable[[Message], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        why_unavailable: Callable[[], str] = str,
        max_preparing: int = 4096,
        sequence_ids: Iterator[int] | None = None,
        parsers: ParserDefaults = NO_PARSERS,
        defaults: SamplingDefaults | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.model = model
        self._send = send
        self._clock_ns = clock_ns
        self._why_unavailable = why_unavailable
        self._max_preparing = max_preparing
        self._num_preparing = 0
        self._parsers = parsers
        self._defaults = tokenizer.sampling_defaults if defaults is None else defaults
        # By request id; None while the request is being tokenised.
        self._requests: dict[str, Stream | None] = {}
        # By sequence id: its stream, and its index there.
        self._places: dict[int, tuple[Stream, int]] = {}
        self._sequence_ids = itertools.count(1) if sequence_ids is None else sequence_ids
        self._seeds = random.Random()
        self._threads = ThreadPoolExecutor(_TOKENISING_THREADS, thread_name_prefix="tokenise")
        special_tokens = [tokenizer.token_bytes[token_id] for token_id in sorted(tokenizer.special_token_ids)]
        self._grammars = GrammarChecker(special_tokens)
        self._draining = False
        self._num_open = 0
        self._metrics = RequestMetrics()
        self._turns = Turns()
        # Those whose callers have not left them, also after their end: they may hold unread output.
        self._open: set[Stream] = set()

    @property
    def num_live(self) -> int:
        """Requests whose callers are not done with them: those that are being tokenised, wait or run, and those that
        have ended and still have output on its way."""
        return self._num_open

    def metrics(self) -> RequestMetrics:
        """What was counted so far; the gauges are as of now."""
        self._metrics.live = self._num_open
        self._metrics.unread_tokens = sum(stream.num_unread for stream in self._open)
        return self._metrics

    def count_refused(self, reason: str) -> None:
        """Counts a request that was not accepted. reason: ErrorInfo's."""
        self._metrics.refused[reason] += 1

    def requests(self) -> list[LiveRequest]:
        """All live requests in order of arrival, those that are still being tokenised last."""
        ready = [LiveRequest.of(stream) for stream in self._requests.values() if stream is not None]
        return ready + [LiveRequest(request_id=id_) for id_, stream in self._requests.items() if stream is None]

    def drain(self) -> None:
        """Refuses new requests from now on; the live ones go on."""
        self._draining = True

    async def shut_down(self) -> list[str]:
        """Ends all requests that are not over, as those of a server that stops. Returns the ids of all that are lost:
        those, and others whose output has not been taken."""
        self._draining = True
        error = ShutdownError()
        for stream in self._open:
            if not stream.is_over:
                stream.push_error(error)
                self._cancel(stream)
        preparing = [id_ for id_, stream in self._requests.items() if stream is None]
        return sorted(stream.request_id for stream in self._open) + preparing

    @asynccontextmanager
    async def open(self, request: GenerateInput, *, deadline_ns: int | None = None) -> AsyncIterator[Stream]:
        """A request from its arrival to its end: leaving the block early, by cancellation too, cancels it.

        deadline_ns: on the engine's clock. Raises RequestError if it is refused, here or by the stream.
        """
        arrival_ns = self._clock_ns()
        if self._draining:
            raise DrainingError
        self.check_model(request.model)
        if request.request_id in self._requests:
            raise DuplicateRequestError(request.request_id)
        if self._num_preparing >= self._max_preparing:
            raise BusyError(self._num_preparing, self._max_preparing)
        self._num_open += 1
        try:
            stream = await self._admit(request, arrival_ns, deadline_ns)
            self._open.add(stream)
            try:
                self._send(Add(specs=stream.specs, request_id=stream.request_id, arrival_ns=arrival_ns))
                yield stream
            finally:
                self._open.discard(stream)
                self._cancel(stream)
        finally:
            self._num_open -= 1

    def deliver(self, update: StepUpdate) -> None:
        """Takes what one step brought. Sequences that are no longer live here are ignored."""
        now_ns, places = update.now_ns, self._places
        before_ns: list[int] = []  # when the last tokens of those that have one now came
        for started in update.started:
            if (place := places.get(started.sequence_id)) is not None:
                stream, index = place
                stream.push_started(index, started.cached_tokens, now_ns)
        for rejected in update.rejected:
            if (place := places.get(rejected.sequence_id)) is not None:
                stream, _ = place
                error = RejectedError(rejected, prompt_field=stream.prompt_field)
                self.count_refused(status_of(error).reason)
                stream.push_error(error)
                self._release(stream)
        for scores in update.scores:
            if (place := places.get(scores.sequence_id)) is not None:
                place[0].push_scores(scores)
        for column, (sequence_id, token_id) in enumerate(zip(update.sequence_ids, update.token_ids, strict=True)):
            if (place := places.get(sequence_id)) is not None:
                stream, index = place
                stopped = stream.push_token(index, token_id, now_ns, before_ns)
                if update.logprobs:
                    stream.push_logprob(index, token_id, update.logprobs[column], _top(update, column))
                if stopped:
                    self._finish(sequence_id, stream, index)
        for then_ns in set(before_ns):  # few: nearly all in a step have waited for equally long
            if then_ns:
                self._metrics.inter_token_latency.observe((now_ns - then_ns) / 1e9, before_ns.count(then_ns))
        self._deliver_ends(update)

    def _finish(self, sequence_id: int, stream: Stream, index: int) -> None:
        """A stop string ended a sequence. What the engine sends of it from now on, its end included, is ignored."""
        del self._places[sequence_id]
        self._send(Finish(sequence_id=sequence_id, num_output_tokens=stream.push_stop(index)))
        if stream.is_over:
            self._cancel(stream)

    def _deliver_ends(self, update: StepUpdate) -> None:
        touched: list[Stream] = []
        for end in update.ends:
            if (place := self._places.pop(end.sequence_id, None)) is not None:
                stream, index = place
                stream.push_end(index, end, self._why_unavailable() if end.reason is EndReason.WORKER_LOST else "")
                touched.append(stream)
        for stream in touched:  # when all ends are in, so that what has just ended is not cancelled as well
            if stream.is_over:
                self._cancel(stream)

    async def _admit(self, request: GenerateInput, arrival_ns: int, deadline_ns: int | None) -> Stream:
        """Puts a request and its sequences on the books."""
        self._requests[request.request_id] = None  # before the first await, so that two cannot both get the id
        self._num_preparing += 1
        try:
            stream = await self._prepare(request, arrival_ns, deadline_ns)
        except BaseException:
            del self._requests[request.request_id]
            raise
        finally:
            self._num_preparing -= 1
        self._requests[request.request_id] = stream
        self._places.update((spec.sequence_id, (stream, index)) for index, spec in enumerate(stream.specs))
        return stream

    async def _prepare(self, request: GenerateInput, arrival_ns: int, deadline_ns: int | None) -> Stream:
        prompt = await self.encode(request.prompt)
        can_end = self.tokenizer.has_text and bool(self.tokenizer.eos_token_ids)
        grammar = await self._grammars.check(request.sampling, can_end=can_end)
        validated = validate(
            request,
            prompt,
            model=self.model,
            eos_token_ids=self.tokenizer.eos_token_ids,
            defaults=self._defaults,
            has_text=self.tokenizer.has_text,
            encode=partial(self.tokenizer.encode, special_tokens=False) if self.tokenizer.has_text else None,
            grammar=grammar,
        )
        specs = self._specs(validated, deadline_ns)
        parsers = choose_parsers(request, prompt, self._parsers)
        return Stream(
            request_id=request.request_id,
            prompt_field=prompt.field,
            outputs=make_outputs(validated, specs, self.tokenizer, parsers),
            arrival_ns=arrival_ns,
            metrics=self._metrics,
            turns=self._turns,
            echo=validated.echo,
            interval=validated.stream_interval,
        )

    def check_model(self, name: str) -> None:
        """Raises UnknownModelError unless the name is empty or that of the model."""
        if name and name != self.model.served_model_name:
            raise UnknownModelError(model=name, served=self.model.served_model_name)

    async def encode(self, prompt: Prompt | None, *, special_tokens: bool = True) -> EncodedPrompt:
        """Tokenises a prompt, a long one in a thread. What it gives is not checked against the model's limits.

        special_tokens: as in `encode_prompt`.
        """
        work = partial(encode_prompt, prompt, self.tokenizer, self.model.max_model_len, special_tokens=special_tokens)
        if prompt_size(prompt) <= _INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _specs(self, validated: ValidatedRequest, deadline_ns: int | None) -> tuple[SequenceSpec, ...]:
        """One per sequence: sequence i draws as one alone with seed + i would. The first scores the prompt for all."""
        first = SequenceSpec(
            sequence_id=next(self._sequence_ids),
            prompt=validated.prompt,
            max_tokens=validated.max_tokens,
            open_ended=validated.open_ended,
            stop_token_ids=validated.stop_token_ids,
            sampling=validated.sampling,
            seed=self._seeds.getrandbits(_SEED_BITS) if validated.seed is None else validated.seed,
            tenant=validated.tenant,
            priority=validated.priority,
            cache_salt=validated.cache_salt,
            deadline_ns=deadline_ns,
        )
        sampling = replace(first.sampling, num_prompt_logprobs=None) if validated.n > 1 else first.sampling
        others = (
            replace(
                first,
                sequence_id=next(self._sequence_ids),
                seed=(first.seed + index) % (1 << _SEED_BITS),
                sampling=sampling,
            )
            for index in range(1, validated.n)
        )
        return (first, *others)

    def _cancel(self, stream: Stream) -> None:
        """Takes a request off the books, and cancels those of its sequences that have not ended."""
        late = has_passed(stream.specs[0].deadline_ns, self._clock_ns())
        reason = EndReason.DEADLINE if late else EndReason.ABORT
        for sequence_id in self._release(stream):
            self._metrics.finished[reason.value] += 1
            self._send(Cancel(sequence_id=sequence_id))

    def _release(self, stream: Stream) -> list[int]:
        """Takes a request off the books. Returns its sequences that were still on them; none the second time."""
        if self._requests.get(stream.request_id) is stream:  # the id may be another request's by now
            del self._requests[stream.request_id]
        ids = [spec.sequence_id for spec in stream.specs]
        return [sequence_id for sequence_id in ids if self._places.pop(sequence_id, None) is not None]


def has_passed(deadline_ns: int | None, now_ns: int) -> bool:
    """Whether a caller that has left did so because its deadline came: its own clock may have run out a little before
    the engine's."""
    return deadline_ns is not None and now_ns >= deadline_ns - _CLOCKS_APART_NS


def _top(update: StepUpdate, column: int) -> tuple[tuple[int, float], ...]:
    if not update.top_tokens:
        return ()
    return tuple(zip(update.top_tokens[column], update.top_logprobs[column], strict=True))
