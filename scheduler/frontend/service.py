"""GenerationService: requests and deltas as messages, errors as statuses, one log line at each end of a request.

Nothing is decided here: the messages become plain values for the `Frontend`, and what it gives becomes messages.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import fields
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from structlog.typing import FilteringBoundLogger

from octavo.serving.v1 import admin_pb2, generation_pb2, generation_pb2_grpc, tokenizer_pb2
from scheduler.core.result import EndReason
from scheduler.frontend.errors import (
    ERROR_DOMAIN,
    INTERNAL,
    InvalidRequestError,
    RequestError,
    Status,
    Violation,
    status_of,
)
from scheduler.frontend.frontend import Frontend, has_passed
from scheduler.frontend.parsing.parts import ToolCallPart
from scheduler.frontend.request import (
    ChatMessage,
    ChatPrompt,
    GenerateInput,
    Prompt,
    SamplingInput,
    TextPrompt,
    TokenPrompt,
    ToolCall,
)
from scheduler.frontend.sampling_validation import MAX_LOGPROBS
from scheduler.frontend.sequence_output import Delta, TokenLogprob
from scheduler.frontend.stream import Piece, Stream, Usage

_LOG = structlog.get_logger(__name__)
# A status travels in HTTP/2 headers, of which receivers take 8 KiB by default.
_MAX_MESSAGE_BYTES: Final = 1024
_MAX_DESCRIPTION_BYTES: Final = 160
_MAX_VIOLATIONS: Final = 24
_MAX_LOGGED_ID_BYTES: Final = 256
_MAX_LOGGED_PROMPT_BYTES: Final = 4096
# What converting a request may take of the event loop: a few MiB have room for a million of either.
_MAX_CHAT_MESSAGES: Final = 16384
_MAX_UNKNOWN_FIELDS: Final = 8  # reported by name; one is enough to refuse
_FINISH_REASONS: Final = {
    EndReason.STOP: generation_pb2.FINISH_REASON_STOP,
    EndReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}


_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
# The messages that have the same oneof.
HasPrompt: TypeAlias = (
    generation_pb2.GenerateRequest
    | generation_pb2.ScorePromptRequest
    | admin_pb2.ProbePrefixRequest
    | tokenizer_pb2.TokenizeRequest
    | tokenizer_pb2.CountTokensRequest
)


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
        log = _LOG.bind(request_id=_cut(request_id, _MAX_LOGGED_ID_BYTES))
        try:
            await self._generate(request, request_id, context, log)
        except Exception as error:
            rpc = _rpc_status_of(error, log)
        else:
            return
        await abort(context, rpc)

    async def ScorePrompt(  # noqa: N802 - the name is the proto's
        self, request: generation_pb2.ScorePromptRequest, context: _Context
    ) -> generation_pb2.ScorePromptResponse:
        request_id = request.request_id or uuid.uuid4().hex
        log = _LOG.bind(request_id=_cut(request_id, _MAX_LOGGED_ID_BYTES))
        try:
            return await self._score(request, request_id, context, log)
        except Exception as error:
            return await abort(context, _rpc_status_of(error, log))

    async def _score(
        self, request: generation_pb2.ScorePromptRequest, request_id: str, context: _Context, log: FilteringBoundLogger
    ) -> generation_pb2.ScorePromptResponse:
        deadline_ns = _deadline_ns(context, time.monotonic_ns())
        async with AsyncExitStack() as stack:
            stream = await self._open(stack, partial(to_score_input, request, request_id), deadline_ns, log)
            prompt = stream.specs[0].prompt
            log.info("prompt to be scored", prompt_tokens=len(prompt))
            token_bytes = self._frontend.tokenizer.token_bytes
            logprobs = [_logprob(entry, token_bytes) async for piece in stream for entry in piece.prompt_logprobs]
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
            log.info("request refused", reason=status_of(error).reason, error=_cut(str(error), _MAX_MESSAGE_BYTES))
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
                    ends |= {delta.end.reason.name for delta in piece.deltas if delta.end is not None}
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


def to_input(request: generation_pb2.GenerateRequest, request_id: str) -> GenerateInput:
    """The request as plain values. Raises InvalidRequestError as `to_prompt` does."""
    return GenerateInput(
        request_id=request_id,
        prompt=to_prompt(request),
        sampling=_sampling(request.sampling_params),
        tenant=request.tenant,
        priority=request.priority,
        cache_salt=request.cache_salt,
        model=request.model,
        tool_call_parser=request.tool_call_parser if request.HasField("tool_call_parser") else None,
        reasoning_parser=request.reasoning_parser if request.HasField("reasoning_parser") else None,
        unknown_fields=tuple(itertools.islice(_unknown_fields(request, ""), _MAX_UNKNOWN_FIELDS)),
    )


def to_score_input(request: generation_pb2.ScorePromptRequest, request_id: str) -> GenerateInput:
    """As `to_input`: a prompt's logprobs and one token, which nobody reads. That token costs next to nothing, and with
    it a prompt to be scored is a request like others."""
    if request.top_logprobs > MAX_LOGPROBS:
        limit = f"is {request.top_logprobs}, must be in [0, {MAX_LOGPROBS}]"
        raise InvalidRequestError((Violation(field="top_logprobs", description=limit),))
    return GenerateInput(
        request_id=request_id,
        prompt=to_prompt(request),
        sampling=SamplingInput(max_tokens=1, temperature=0.0, prompt_logprobs=request.top_logprobs),
        tenant=request.tenant,
        priority=request.priority,
        model=request.model,
        unknown_fields=tuple(itertools.islice(_unknown_fields(request, ""), _MAX_UNKNOWN_FIELDS)),
    )


def to_response(request_id: str, piece: Piece, token_bytes: Sequence[bytes] = ()) -> generation_pb2.GenerateResponse:
    """The message of a piece. token_bytes: by id, for the texts of the logprobs."""
    response = generation_pb2.GenerateResponse(
        request_id=request_id,
        deltas=[_sequence_delta(delta, token_bytes) for delta in piece.deltas],
        usage=None if piece.usage is None else _usage(piece.usage),
    )
    if piece.echoed_ids:
        response.prompt_token_ids.extend(piece.echoed_ids)
    if piece.prompt_logprobs:
        response.prompt_logprobs.extend(_logprob(entry, token_bytes) for entry in piece.prompt_logprobs)
    return response


def to_rpc_status(error: RequestError, status: Status) -> status_pb2.Status:
    """The status of an error, with BadRequest, ErrorInfo and RetryInfo where they apply."""
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=status.reason, domain=ERROR_DOMAIN, metadata=error.metadata())
    ]
    if error.violations:
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(
                        field=violation.field, description=_cut(violation.description, _MAX_DESCRIPTION_BYTES)
                    )
                    for violation in error.violations[:_MAX_VIOLATIONS]
                ]
            )
        )
    if status.retry_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(status.retry_seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = [any_pb2.Any() for _ in details]
    for box, detail in zip(packed, details, strict=True):
        box.Pack(detail)
    return status_pb2.Status(code=status.code.value[0], message=_cut(str(error), _MAX_MESSAGE_BYTES), details=packed)


def _rpc_status_of(error: Exception, log: FilteringBoundLogger) -> status_pb2.Status:
    """The status that ends a call; a defect of the server is logged with its trace."""
    if isinstance(error, RequestError):
        return to_rpc_status(error, status_of(error))
    log.error("request failed on a defect of the server", exc_info=error)
    return to_rpc_status(RequestError("internal error; the server's log has its trace"), INTERNAL)


def _prompt_text(request: generation_pb2.GenerateRequest) -> str:
    """The prompt on one line, as far as a log line should go."""
    kind = request.WhichOneof("prompt")
    shown = request.text if kind == "text" else str(getattr(request, kind) if kind else "")
    return _cut(" ".join(shown.split()), _MAX_LOGGED_PROMPT_BYTES)


def to_prompt(request: HasPrompt) -> Prompt | None:
    """The prompt as a plain value. Raises InvalidRequestError for a chat that is too long."""
    match request.WhichOneof("prompt"):
        case "text":
            return TextPrompt(text=request.text)
        case "chat":
            chat = request.chat
            if (length := len(chat.messages)) > _MAX_CHAT_MESSAGES:
                limit = f"has {length} messages, must have at most {_MAX_CHAT_MESSAGES}"
                raise InvalidRequestError((Violation(field="chat.messages", description=limit),))
            return _chat(chat)
        case "token_ids":
            return TokenPrompt(ids=request.token_ids.ids)
        case _:
            return None


def _chat(chat: generation_pb2.ChatPrompt) -> ChatPrompt:
    return ChatPrompt(
        messages=tuple(_chat_message(message) for message in chat.messages),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None,
        continue_final_message=chat.continue_final_message,
        tools=tuple(chat.tools),
        template_kwargs=chat.template_kwargs,
    )


def _chat_message(message: generation_pb2.ChatMessage) -> ChatMessage:
    return ChatMessage(
        role=message.role,
        content=message.content,
        tool_calls=tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning,
    )


def _sampling(message: Message) -> SamplingInput:
    """Copies the fields that are set; SamplingInput has them under the same names."""
    values: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        if descriptor.name == "choice":
            values["choice"] = tuple(value.texts)
        elif descriptor.message_type is not None:  # a map
            values[descriptor.name] = dict(value)
        else:
            values[descriptor.name] = tuple(value) if descriptor.is_repeated else value
    return SamplingInput(**values)


def _unknown_fields(message: Message, prefix: str) -> Iterator[str]:
    """Paths of the fields that this version does not know, by their numbers: `sampling_params.#99`."""
    unknown = UnknownFieldSet(message)
    for index in range(len(unknown)):
        yield f"{prefix}#{unknown[index].field_number}"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for child in value if descriptor.is_repeated else (value,):
            yield from _unknown_fields(child, f"{prefix}{descriptor.name}.")


def _sequence_delta(delta: Delta, token_bytes: Sequence[bytes]) -> generation_pb2.SequenceDelta:
    message = generation_pb2.SequenceDelta(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=[_logprob(entry, token_bytes) for entry in delta.logprobs],
    )
    if delta.reasoning or delta.tool_calls:
        message.reasoning = delta.reasoning
        message.tool_calls.extend(map(_tool_call, delta.tool_calls))
    if delta.end is not None:
        message.finish_reason = _FINISH_REASONS[delta.end.reason]
        if delta.end.stop_token_id is not None:
            message.stop_token_id = delta.end.stop_token_id
        if delta.stop_string is not None:
            message.stop_string = delta.stop_string
    return message


def _tool_call(part: ToolCallPart) -> generation_pb2.ToolCallDelta:
    return generation_pb2.ToolCallDelta(index=part.index, id=part.call_id, name=part.name, arguments=part.arguments)


def _logprob(entry: TokenLogprob, token_bytes: Sequence[bytes]) -> generation_pb2.TokenLogprob:
    own = _bytes_of(entry.token_id, token_bytes)
    return generation_pb2.TokenLogprob(
        token_id=entry.token_id,
        logprob=entry.logprob,
        top=[_top_logprob(token_id, logprob, token_bytes) for token_id, logprob in entry.top],
        text=own.decode(errors="replace"),
        token_bytes=own,
    )


def _top_logprob(token_id: int, logprob: float, token_bytes: Sequence[bytes]) -> generation_pb2.TopLogprob:
    own = _bytes_of(token_id, token_bytes)
    return generation_pb2.TopLogprob(
        token_id=token_id, logprob=logprob, text=own.decode(errors="replace"), token_bytes=own
    )


def _bytes_of(token_id: int, token_bytes: Sequence[bytes]) -> bytes:
    """Empty for an id past the vocabulary, which logits that are wider than it have."""
    return token_bytes[token_id] if token_id < len(token_bytes) else b""


def _usage(usage: Usage) -> generation_pb2.Usage:
    return generation_pb2.Usage(**{field.name: getattr(usage, field.name) for field in fields(usage)})


def _deadline_ns(context: _Context, now_ns: int) -> int | None:
    remaining = context.time_remaining()
    return None if remaining is None else now_ns + int(remaining * 1e9)


async def abort(context: _Context, rpc: status_pb2.Status) -> NoReturn:
    """Ends a call with a status and its details."""
    status = rpc_status.to_status(rpc)
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort does not return")


def _cut(text: str, num_bytes: int) -> str:
    data = text.encode()
    return text if len(data) <= num_bytes else data[: num_bytes - 3].decode(errors="ignore") + "..."
