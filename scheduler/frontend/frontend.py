"""The front end: from a request to a stream of deltas.

Owns the live streams and the request ids in use. It talks to the engine through the values of `scheduler.messages`
alone: `send` takes them down, `deliver` brings one update per step up. Every method runs on one event loop; only the
tokenisation of long prompts leaves it, for a thread.

Invariant: a sequence is in `_streams` from its Add until its end, its refusal or its Cancel, whichever comes first.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from scheduler.core.sequence import SequenceSpec
from scheduler.frontend.directory import LiveRequest
from scheduler.frontend.errors import DrainingError, DuplicateRequestError, RejectedError, UnknownModelError
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.prompts import EncodedPrompt, encode_prompt, prompt_size
from scheduler.frontend.request import GenerateInput, Prompt
from scheduler.frontend.stream import Stream
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.frontend.validation import ValidatedRequest, validate
from scheduler.messages import Add, Cancel, StepUpdate

# Tokenising runs at 1 to 5 characters per microsecond; below this a thread costs more than it saves the event loop.
_INLINE_CHARACTERS: Final = 4096


class Frontend:
    """See the module.

    send: hands a message to the engine; must not block, and is called on the event loop. clock_ns: the engine's clock.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        model: ModelInfo,
        send: Callable[[Add | Cancel], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.tokenizer = tokenizer
        self.model = model
        self._send = send
        self._clock_ns = clock_ns
        self._streams: dict[int, Stream] = {}
        self._request_ids: set[str] = set()
        self._sequence_ids = itertools.count(1)
        self._seeds = random.Random()
        self._draining = False

    @property
    def num_live(self) -> int:
        """Requests that are being tokenised, wait or run."""
        return len(self._request_ids)

    def requests(self) -> list[LiveRequest]:
        """All live requests in order of arrival, those that are still being tokenised last."""
        grouped: dict[str, list[Stream]] = {}
        for stream in self._streams.values():
            grouped.setdefault(stream.request_id, []).append(stream)
        ready = [LiveRequest.of(streams) for streams in grouped.values()]
        return ready + [LiveRequest(request_id=id_) for id_ in sorted(self._request_ids.difference(grouped))]

    def drain(self) -> None:
        """Refuses new requests from now on; the live ones go on."""
        self._draining = True

    @asynccontextmanager
    async def open(self, request: GenerateInput, *, deadline_ns: int | None = None) -> AsyncIterator[Stream]:
        """A request from its arrival to its end: leaving the block early, by cancellation too, cancels it.

        deadline_ns: on the engine's clock. Raises RequestError if it is refused, here or by the stream.
        """
        arrival_ns = self._clock_ns()
        if self._draining:
            raise DrainingError
        if request.model and request.model != self.model.served_model_name:
            raise UnknownModelError(model=request.model, served=self.model.served_model_name)
        if request.request_id in self._request_ids:
            raise DuplicateRequestError(request.request_id)
        self._request_ids.add(request.request_id)  # before the first await, so that two cannot both get it
        try:
            stream = await self._prepare(request, arrival_ns, deadline_ns)
        except BaseException:
            self._request_ids.discard(request.request_id)
            raise
        self._streams[stream.spec.sequence_id] = stream
        try:
            self._send(Add(spec=stream.spec))
            yield stream
        finally:
            if self._release(stream.spec.sequence_id) is not None:
                self._send(Cancel(sequence_id=stream.spec.sequence_id))

    def deliver(self, update: StepUpdate) -> None:
        """Takes what one step brought. Sequences that are no longer live here are ignored."""
        now_ns, streams = update.now_ns, self._streams
        for started in update.started:
            if (stream := streams.get(started.sequence_id)) is not None:
                stream.push_started(started.cached_tokens, now_ns)
        for rejected in update.rejected:
            if (stream := self._release(rejected.sequence_id)) is not None:
                stream.push_error(RejectedError(rejected))
        for place, (sequence_id, token_id) in enumerate(zip(update.sequence_ids, update.token_ids, strict=True)):
            if (stream := streams.get(sequence_id)) is not None:
                stream.push_token(token_id, now_ns)
                if update.logprobs:
                    stream.push_logprob(token_id, update.logprobs[place], _top(update, place))
        for end in update.ends:
            if (stream := self._release(end.sequence_id)) is not None:
                stream.push_end(end)

    async def _prepare(self, request: GenerateInput, arrival_ns: int, deadline_ns: int | None) -> Stream:
        validated = validate(
            request,
            await self.encode(request.prompt),
            model=self.model,
            eos_token_ids=self.tokenizer.eos_token_ids,
            defaults=self.tokenizer.sampling_defaults,
        )
        return Stream(
            request_id=request.request_id,
            spec=self._spec(validated, deadline_ns),
            detokenizer=self.tokenizer.detokenizer(skip_special_tokens=validated.skip_special_tokens),
            arrival_ns=arrival_ns,
        )

    async def encode(self, prompt: Prompt | None) -> EncodedPrompt:
        """Tokenises a prompt, a long one in a thread. What it gives is not checked against the model's limits."""
        if prompt_size(prompt) <= _INLINE_CHARACTERS:
            return encode_prompt(prompt, self.tokenizer)
        return await asyncio.to_thread(encode_prompt, prompt, self.tokenizer)

    def _spec(self, validated: ValidatedRequest, deadline_ns: int | None) -> SequenceSpec:
        return SequenceSpec(
            sequence_id=next(self._sequence_ids),
            prompt=validated.prompt,
            max_tokens=validated.max_tokens,
            stop_token_ids=validated.stop_token_ids,
            sampling=validated.sampling,
            seed=self._seeds.getrandbits(64) if validated.seed is None else validated.seed,
            tenant=validated.tenant,
            priority=validated.priority,
            cache_salt=validated.cache_salt,
            deadline_ns=deadline_ns,
        )

    def _release(self, sequence_id: int) -> Stream | None:
        """Takes a sequence off the books; None if it was not on them."""
        stream = self._streams.pop(sequence_id, None)
        if stream is not None:
            self._request_ids.discard(stream.request_id)
        return stream


def _top(update: StepUpdate, place: int) -> tuple[tuple[int, float], ...]:
    if not update.top_tokens:
        return ()
    return tuple(zip(update.top_tokens[place], update.top_logprobs[place], strict=True))
