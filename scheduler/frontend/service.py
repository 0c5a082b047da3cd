"""GenerationService: one log line at each end of a request; `wire` and `statuses` make the messages.

Nothing is decided here: the messages become plain values for the `Frontend`, and what it gives becomes messages.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
import structlog
from structlog.typing import FilteringBoundLogger

from octavo.serving.v1 import generation_pb2, generation_pb2_grpc
from scheduler.frontend.errors import RequestError, status_of
from scheduler.frontend.frontend import Frontend, has_passed
from scheduler.frontend.request import GenerateInput
from scheduler.frontend.statuses import MAX_MESSAGE_BYTES, abort, cut, rpc_status_of
from scheduler.frontend.stream import Stream
from scheduler.frontend.wire import to_input, to_logprob, to_response, to_score_input

_LOG = structlog.get_logger(__name__)
_MAX_LOGGED_ID_BYTES: Final = 256
_MAX_LOGGED_PROMPT_BYTES: Final = 4096

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Serves what the front end generates. log_prompts: whether the log shows what was asked."""

    def __init__(self, frontend: Frontend, *, log_prompts: bool = False) -> None:
        self._frontend = frontend
        self._log_prompts = log_prompts

    async def Generate(  # noqa: N802 - the name is the proto's
        self, request: generation_pb2.GenerateRequest, context: _Context
    ) -> None:
        # Writes rather than yields: a cancelled call must end this coroutine, not leave a generator to the collector.
        request_id = request.request_id or uuid.uuid4().hex
        log = _LOG.bind(request_id=cut(request_id, _MAX_LOGGED_ID_BYTES))
        try:
            await self._generate(request, request_id, context, log)
        except Exception as error:
            rpc = rpc_status_of(error, log)
        else:
            return
        await abort(context, rpc)

    async def ScorePrompt(  # noqa: N802 - the name is the proto's
        self, request: generation_pb2.ScorePromptRequest, context: _Context
    ) -> generation_pb2.ScorePromptResponse:
        request_id = request.request_id or uuid.uuid4().hex
        log = _LOG.bind(request_id=cut(request_id, _MAX_LOGGED_ID_BYTES))
        try:
            return await self._score(request, request_id, context, log)
        except Exception as error:
            return await abort(context, rpc_status_of(error, log))

    async def _score(
        self, request: generation_pb2.ScorePromptRequest, request_id: str, context: _Context, log: FilteringBoundLogger
    ) -> generation_pb2.ScorePromptResponse:
        deadline_ns = _deadline_ns(context, time.monotonic_ns())
        async with AsyncExitStack() as stack:
            stream = await self._open(stack, partial(to_score_input, request, request_id), deadline_ns, log)
            prompt = stream.specs[0].prompt
            log.info("prompt to be scored", prompt_tokens=len(prompt))
            token_bytes = self._frontend.tokenizer.token_bytes
            logprobs = [to_logprob(entry, token_bytes) async for piece in stream for entry in piece.prompt_logprobs]
            return generation_pb2.ScorePromptResponse(request_id=request_id, token_ids=prompt, logprobs=logprobs)

    async def _open(
        self,
        stack: AsyncExitStack,
        read: Callable[[], GenerateInput],
        deadline_ns: int | None,
        log: FilteringBoundLogger,
    ) -> Stream:
        """The stream of a request, left when the stack is; one that is refused is counted and logged."""
        try:
            return await stack.enter_async_context(self._frontend.open(read(), deadline_ns=deadline_ns))
        except RequestError as error:
            self._frontend.count_refused(status_of(error).reason)
            log.info("request refused", reason=status_of(error).reason, error=cut(str(error), MAX_MESSAGE_BYTES))
            raise

    async def _generate(
        self, request: generation_pb2.GenerateRequest, request_id: str, context: _Context, log: FilteringBoundLogger
    ) -> None:
        begin_ns = time.monotonic_ns()
        deadline_ns = _deadline_ns(context, begin_ns)
        async with AsyncExitStack() as stack:
            stream = await self._open(stack, partial(to_input, request, request_id), deadline_ns, log)
            spec = stream.specs[0]
            if self._log_prompts:
                log.info("request prompt", prompt=_prompt_text(request))
            log.info(
                "request accepted",
                sequence_ids=[each.sequence_id for each in stream.specs],
                prompt_tokens=len(spec.prompt),
                max_tokens=spec.max_tokens,
                open_ended=spec.open_ended,
                seed=spec.seed,
                tenant=spec.tenant,
                priority=spec.priority,
            )
            reason, ends = "CANCELLED", set[str]()
            token_bytes = self._frontend.tokenizer.token_bytes
            try:
                async for piece in stream:
                    await context.write(to_response(stream.request_id, piece, token_bytes))
                    for delta in piece.deltas:
                        if delta.end is not None:
                            ends.add(delta.end.reason.name)
                reason = ", ".join(sorted(ends))
            except RequestError as error:
                reason = status_of(error).reason
                raise
            finally:
                if reason == "CANCELLED" and has_passed(deadline_ns, time.monotonic_ns()):
                    reason = "DEADLINE"
                seconds = (time.monotonic_ns() - begin_ns) / 1e9
                log.info("request ended", reason=reason, tokens=stream.num_tokens, seconds=round(seconds, 6))

    async def GetModelInfo(  # noqa: N802 - the name is the proto's
        self, request: generation_pb2.GetModelInfoRequest, context: _Context
    ) -> generation_pb2.GetModelInfoResponse:
        model, tokenizer = self._frontend.model, self._frontend.tokenizer
        return generation_pb2.GetModelInfoResponse(
            served_model_name=model.served_model_name,
            architecture=model.architecture,
            dtype=model.dtype,
            max_model_len=model.max_model_len,
            logits_width=model.logits_width,
            block_size=model.block_size,
            eos_token_ids=tokenizer.eos_token_ids,
            has_chat_template=tokenizer.has_chat_template,
            tokenizer_digest=model.tokenizer_digest,
            weights_digest=model.weights_digest,
        )


def _prompt_text(request: generation_pb2.GenerateRequest) -> str:
    """The prompt on one line, as far as a log line should go."""
    kind = request.WhichOneof("prompt")
    shown = request.text if kind == "text" else str(getattr(request, kind) if kind else "")
    return cut(" ".join(shown.split()), _MAX_LOGGED_PROMPT_BYTES)


def _deadline_ns(context: _Context, now_ns: int) -> int | None:
    remaining = context.time_remaining()
    return None if remaining is None else now_ns + int(remaining * 1e9)
