"""The public API's messages as plain values, and back. Nothing is decided here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from octavo.serving.v1 import admin_pb2, generation_pb2, tokenizer_pb2
from scheduler.core.result import EndReason
from scheduler.frontend.errors import InvalidRequestError, Violation
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
from scheduler.frontend.stream import Piece, Usage

# What converting a request may take of the event loop: a few MiB have room for a million of either.
_MAX_CHAT_MESSAGES: Final = 16384
_MAX_UNKNOWN_FIELDS: Final = 8  # reported by name; one is enough to refuse
_FINISH_REASONS: Final = {
    EndReason.STOP: generation_pb2.FINISH_REASON_STOP,
    EndReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}

# The messages that have the same oneof.
HasPrompt: TypeAlias = (
    generation_pb2.GenerateRequest
    | generation_pb2.ScorePromptRequest
    | admin_pb2.ProbePrefixRequest
    | tokenizer_pb2.TokenizeRequest
    | tokenizer_pb2.CountTokensRequest
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
        stream_interval=request.stream_interval if request.HasField("stream_interval") else 1,
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
    # Made once per stream and step: only what says something is set, in place, in half of the time that the same values
    # take as keyword arguments.
    response = generation_pb2.GenerateResponse(request_id=request_id)
    for delta in piece.deltas:
        _set_delta(response.deltas.add(), delta, token_bytes)
    if piece.usage is not None:
        response.usage.CopyFrom(_usage(piece.usage))
    if piece.echoed_ids:
        response.prompt_token_ids.extend(piece.echoed_ids)
    if piece.prompt_logprobs:
        response.prompt_logprobs.extend(to_logprob(entry, token_bytes) for entry in piece.prompt_logprobs)
    return response


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


def _set_delta(message: generation_pb2.SequenceDelta, delta: Delta, token_bytes: Sequence[bytes]) -> None:
    if delta.index:
        message.index = delta.index
    message.text = delta.text
    message.token_ids.extend(delta.token_ids)
    if delta.logprobs:
        message.logprobs.extend(to_logprob(entry, token_bytes) for entry in delta.logprobs)
    if delta.reasoning or delta.tool_calls:
        message.reasoning = delta.reasoning
        message.tool_calls.extend(map(_tool_call, delta.tool_calls))
    if delta.end is not None:
        message.finish_reason = _FINISH_REASONS[delta.end.reason]
        if delta.end.stop_token_id is not None:
            message.stop_token_id = delta.end.stop_token_id
        if delta.stop_string is not None:
            message.stop_string = delta.stop_string


def _tool_call(part: ToolCallPart) -> generation_pb2.ToolCallDelta:
    return generation_pb2.ToolCallDelta(index=part.index, id=part.call_id, name=part.name, arguments=part.arguments)


def to_logprob(entry: TokenLogprob, token_bytes: Sequence[bytes]) -> generation_pb2.TokenLogprob:
    """The message of a logprob. token_bytes: by id."""
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
