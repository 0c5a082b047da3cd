"""The asynchronous client. `clients.sync` is its twin; what both share lies in the modules they import."""

# ruff: noqa: ASYNC109 - the timeouts are gRPC's own: they travel to the server as the request's deadline.

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
import grpc.aio

from clients import admin_client, generation_client, health_client, tokenizer_client
from clients.channel import OPTIONS, begin
from clients.errors import OctavoError
from clients.request import RequestKeywords, ScoreKeywords, make_request, whole
from clients.results import Completion, Delta, ModelInfo, ScoredPrompt, TokenLogprob, Tokens, Usage, join
from clients.stats import Stats
from clients.status_client import octavo_error
from clients.tokenizer_client import PromptKeywords


class AsyncDeltaStream:
    """The deltas of one request, in order; with n > 1 those of its sequences by turns. Iterate it once.

    Closing it, leaving its `async with` block, cancelling the task that iterates it or dropping the last reference to
    it cancels the call, and the server frees what the request holds. After a close the iteration ends; after a failure,
    that of a cancelled task included, it fails again.

    request_id: known from the first delta on. usage: known after the last. prompt_token_ids: with echo, from the first
    delta on. prompt_logprobs: if asked for, those that have come so far; all have with the first delta.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._messages = call.__aiter__()
        self._ready: deque[Delta] = deque()
        self._closed = False
        self._failure: OctavoError | None = None
        self.request_id = ""
        self.usage: Usage | None = None
        self.prompt_logprobs: list[TokenLogprob] = []
        self.prompt_token_ids: tuple[int, ...] = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            try:
                piece = generation_client.piece(await anext(self._messages))
            except grpc.RpcError as error:
                self._failure = octavo_error(error)
                raise self._failure from None
            except asyncio.CancelledError:
                if _task_is_cancelled():
                    # The call ended with it. Who reads on must not take what came before for the whole answer.
                    self._failure = OctavoError(grpc.StatusCode.CANCELLED, "the task that read it was cancelled")
                    raise
                if self._closed:
                    raise StopAsyncIteration from None
                self._failure = _closed()
                raise self._failure from None
            self.request_id = piece.request_id
            self.usage = piece.usage
            self.prompt_logprobs += piece.prompt_logprobs
            self.prompt_token_ids = self.prompt_token_ids or piece.prompt_token_ids
            self._ready.extend(piece.deltas)
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Cancel the call if it has not ended, and drop what has not been read."""
        self._closed = True
        self._ready.clear()
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # grpc.aio's channel keeps a call alive for as long as it goes on.
        self._call.cancel()


class AsyncClient:
    """A connection to an Octavo server at `target` (HOST:PORT). Cheap to share between tasks of one event loop.

    The connection is made by the first call. Every method raises an `OctavoError` when its call fails. A `timeout` is
    in seconds and covers the whole call; None waits for ever.

    Raises RuntimeError where no event loop runs: it belongs to the one that it is made in.
    """

    def __init__(self, target: str) -> None:
        asyncio.get_running_loop()  # gRPC would take another one, and every call would fail
        self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        self._generation = generation_client.GenerationStub(self._channel)
        self._tokenizer = tokenizer_client.TokenizerStub(self._channel)
        self._admin = admin_client.AdminStub(self._channel)
        self._health = health_client.HealthStub(self._channel)

    def generate(
        self, prompt: str | None = None, *, timeout: float | None = None, **keywords: Unpack[RequestKeywords]
    ) -> AsyncDeltaStream:
        """Continue a prompt: text, or `messages=`, or `token_ids=`. Keywords: those of `RequestKeywords`.

        Raises InvalidRequestError at once for a value that cannot be sent; the iteration raises what the server says.
        """
        message = generation_client.request_message(make_request(prompt, keywords))
        return AsyncDeltaStream(begin(self._generation.Generate, message, timeout))

    async def complete(
        self, prompt: str | None = None, *, timeout: float | None = None, **keywords: Unpack[RequestKeywords]
    ) -> Completion:
        """The whole answer at once, with a choice per sequence; otherwise like `generate`."""
        stream = self.generate(prompt, timeout=timeout, **whole(keywords))
        async with stream:
            deltas = [delta async for delta in stream]
            return join(stream.request_id, deltas, stream.usage, stream.prompt_token_ids, stream.prompt_logprobs)

    async def score_prompt(
        self, prompt: str | None = None, *, timeout: float | None = None, **keywords: Unpack[ScoreKeywords]
    ) -> ScoredPrompt:
        """The log probability of each token of a prompt; nothing is generated. Keywords: those of `ScoreKeywords`."""
        request = generation_client.score_message(prompt, keywords)
        return generation_client.scored_prompt(await _answer(self._generation.ScorePrompt, request, timeout))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        without_special_tokens: bool = False,
        with_token_bytes: bool = False,
        timeout: float | None = None,
        **keywords: Unpack[PromptKeywords],
    ) -> Tokens:
        """The token ids of a prompt: text, or `messages=`, or `token_ids=`. Keywords: those of `PromptKeywords`."""
        request = tokenizer_client.tokenize_request(text, without_special_tokens, with_token_bytes, keywords)
        return tokenizer_client.tokens(await _answer(self._tokenizer.Tokenize, request, timeout))

    async def count_tokens(
        self, text: str | None = None, *, timeout: float | None = None, **keywords: Unpack[PromptKeywords]
    ) -> int:
        """How many tokens a prompt has; otherwise like `tokenize`."""
        request = tokenizer_client.count_request(text, keywords)
        return int((await _answer(self._tokenizer.CountTokens, request, timeout)).count)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool | None = None,
        spaces_between_special_tokens: bool = False,
        timeout: float | None = None,
    ) -> str:
        """The text of token ids."""
        request = tokenizer_client.detokenize_request(token_ids, skip_special_tokens, spaces_between_special_tokens)
        return str((await _answer(self._tokenizer.Detokenize, request, timeout)).text)

    async def model_info(self, *, timeout: float | None = None) -> ModelInfo:
        """The served model and the limits of a request."""
        request = generation_client.model_info_request()
        return generation_client.model_info(await _answer(self._generation.GetModelInfo, request, timeout))

    async def stats(self, *, timeout: float | None = None) -> Stats:
        """Queues, blocks and counters of the scheduler as of its last step."""
        return admin_client.stats(await _answer(self._admin.GetStats, admin_client.stats_request(), timeout))

    async def health(self, *, timeout: float | None = None) -> bool:
        """Whether the server makes progress and takes requests. Raises UnavailableError if nobody answers."""
        return health_client.is_serving(await _answer(self._health.Check, health_client.health_request(), timeout))

    async def aclose(self) -> None:
        """Close the connection; streams that are still open are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _answer(method: Any, request: object, timeout: float | None) -> Any:
    try:
        return await begin(method, request, timeout)
    except grpc.RpcError as error:
        raise octavo_error(error) from None
    except asyncio.CancelledError:
        if _task_is_cancelled():
            raise
        raise _closed() from None


def _task_is_cancelled() -> bool:
    """Whether a CancelledError is the task's; gRPC raises it for a call that was cancelled on this side, too."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _closed() -> OctavoError:
    return OctavoError(grpc.StatusCode.CANCELLED, "the client was closed")
