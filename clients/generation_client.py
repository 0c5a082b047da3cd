"""Between the clients' values and the messages of octavo.serving.v1.GenerationService."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import fields
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from clients.errors import InvalidRequestError, Violation
from clients.request import Prompt, Request, SamplingParams, ScoreKeywords
from clients.results import (
    Delta,
    FinishReason,
    ModelInfo,
    Piece,
    ScoredPrompt,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from octavo.serving.v1 import generation_pb2, generation_pb2_grpc, sampling_pb2

GenerationStub: Final = generation_pb2_grpc.GenerationServiceStub

_PLAIN_FIELDS: Final = (
    "request_id",
    "tenant",
    "priority",
    "cache_salt",
    "model",
    "tool_call_parser",
    "reasoning_parser",
    "stream_interval",
)
# A oneof of the message, which would keep the last of several.
_STRUCTURED_OUTPUT: Final = tuple(
    field.name for field in sampling_pb2.SamplingParams.DESCRIPTOR.oneofs_by_name["structured_output"].fields
)
_FINISH_REASONS: dict[int, FinishReason | None] = {
    generation_pb2.FINISH_REASON_UNSPECIFIED: None,
    generation_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    generation_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


def request_message(request: Request) -> generation_pb2.GenerateRequest:
    """Raises InvalidRequestError for what the message cannot hold, for example a negative token id."""
    message = generation_pb2.GenerateRequest()
    for name in _PLAIN_FIELDS:
        assign(message, name, getattr(request, name), name)
    set_prompt(message, request)
    message.sampling_params.CopyFrom(_sampling_message(request.sampling_params))
    return message


def score_message(prompt: str | None, keywords: ScoreKeywords) -> generation_pb2.ScorePromptRequest:
    """Raises as `request_message`."""
    others: dict[str, Any] = dict(keywords)
    top_logprobs = others.pop("top_logprobs", None)
    request = Request(prompt=prompt, **others)
    message = generation_pb2.ScorePromptRequest()
    for name in ("request_id", "tenant", "priority", "model"):
        assign(message, name, getattr(request, name), name)
    assign(message, "top_logprobs", top_logprobs, "top_logprobs")
    set_prompt(message, request)
    return message


def scored_prompt(response: generation_pb2.ScorePromptResponse) -> ScoredPrompt:
    """The scored prompt as values."""
    return ScoredPrompt(
        request_id=response.request_id,
        token_ids=tuple(response.token_ids),
        logprobs=tuple(_logprob(entry) for entry in response.logprobs),
    )


def set_prompt(message: Any, prompt: Prompt) -> None:
    """Fills in the oneof that several messages have. Raises InvalidRequestError as `request_message` does."""
    if prompt.prompt is not None:
        assign(message, "text", prompt.prompt, "prompt")
    elif prompt.token_ids is not None:
        message.token_ids.SetInParent()  # an empty prompt is the server's to refuse
        assign(message.token_ids, "ids", prompt.token_ids, "token_ids")
    else:
        _set_chat(message.chat, prompt)


def _set_chat(chat: generation_pb2.ChatPrompt, prompt: Prompt) -> None:
    chat.SetInParent()
    for i, turn in enumerate(prompt.messages or ()):
        if not isinstance(turn, Mapping):
            raise _does_not_fit(turn, f"messages[{i}]", "must be a mapping with role and content")
        added = chat.messages.add()
        for name in ("role", "content", "tool_call_id", "name", "reasoning"):
            assign(added, name, turn.get(name), f"messages[{i}].{name}")
        for j, call in enumerate(turn.get("tool_calls") or ()):
            path, message = f"messages[{i}].tool_calls[{j}]", added.tool_calls.add()
            if not isinstance(call, ToolCall):
                raise _does_not_fit(call, path, "must be a ToolCall")
            for name in ("id", "name", "arguments"):
                assign(message, name, getattr(call, name), f"{path}.{name}")
    assign(chat, "add_generation_prompt", prompt.add_generation_prompt, "add_generation_prompt")
    assign(chat, "continue_final_message", prompt.continue_final_message, "continue_final_message")
    chat.tools.extend(_as_json(tool, f"tools[{i}]") for i, tool in enumerate(prompt.tools or ()))
    if prompt.template_kwargs:
        chat.template_kwargs = _as_json(prompt.template_kwargs, "template_kwargs")


def _as_json(value: object, path: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise _does_not_fit(value, path, error) from None


def _sampling_message(params: SamplingParams) -> sampling_pb2.SamplingParams:
    forms = [f"sampling_params.{name}" for name in _STRUCTURED_OUTPUT if getattr(params, name) is not None]
    if len(forms) > 1:
        raise _invalid(forms, f"give at most one of {', '.join(forms)}")
    message = sampling_pb2.SamplingParams()
    for field in fields(params):
        path, value = f"sampling_params.{field.name}", getattr(params, field.name)
        if field.name == "choice" and value is not None:
            message.choice.SetInParent()  # an empty one is the server's to refuse
            assign(message.choice, "texts", value, path)
        else:
            is_schema = field.name == "json_schema" and isinstance(value, Mapping)
            assign(message, field.name, _as_json(value, path) if is_schema else value, path)
    return message


def assign(message: Any, name: str, value: object, path: str) -> None:
    """Sets a field unless the value is None; a repeated one takes any iterable. `path` names it in the error."""
    if value is None:
        return
    field = getattr(message, name)
    try:
        if isinstance(field, MutableMapping):
            if not isinstance(value, Mapping):
                raise TypeError("must be a mapping")
            field.update(value)
        elif isinstance(field, MutableSequence):
            if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
                raise TypeError("must be a list")
            field.extend(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise _does_not_fit(value, path, error) from None


def _does_not_fit(value: object, path: str, why: object) -> InvalidRequestError:
    return _invalid([path], f"{reprlib.repr(value)} does not fit the field: {why}")


def _invalid(paths: Sequence[str], description: str) -> InvalidRequestError:
    return InvalidRequestError(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"{', '.join(paths)}: {description}",
        violations=[Violation(path, description) for path in paths],
    )


def piece(response: generation_pb2.GenerateResponse) -> Piece:
    """One message of the stream as values."""
    return Piece(**_set_values(response))


def _delta(delta: generation_pb2.SequenceDelta) -> Delta:
    return Delta(**_EMPTY_DELTA | _set_values(delta))


def _set_values(message: Message) -> dict[str, Any]:
    """The fields that are set, as values; only those, because protobuf makes an object of each empty list that it is
    asked for, and a message comes per token."""
    return {
        field.name: value if (convert := _CONVERSIONS.get(field.name)) is None else convert(value)
        for field, value in message.ListFields()
    }


def _tool_call(part: generation_pb2.ToolCallDelta) -> ToolCallDelta:
    return ToolCallDelta(index=part.index, id=part.id, name=part.name, arguments=part.arguments)


def _logprob(entry: generation_pb2.TokenLogprob) -> TokenLogprob:
    top = tuple(
        TopLogprob(token_id=other.token_id, logprob=other.logprob, text=other.text, token_bytes=other.token_bytes)
        for other in entry.top
    )
    return TokenLogprob(
        token_id=entry.token_id, logprob=entry.logprob, top=top, text=entry.text, token_bytes=entry.token_bytes
    )


def _usage(usage: generation_pb2.Usage) -> Usage:
    return Usage(**{field.name: getattr(usage, field.name) for field in fields(Usage)})


def _finish_reason(number: int) -> FinishReason | None:
    return _FINISH_REASONS.get(number, FinishReason.UNKNOWN)


_EMPTY_DELTA: Final[dict[str, Any]] = {"index": 0, "text": "", "token_ids": ()}
# Of GenerateResponse and SequenceDelta, which name their fields as Piece and Delta do; the others are values already.
_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "deltas": lambda deltas: tuple(map(_delta, deltas)),
    "usage": _usage,
    "prompt_logprobs": lambda entries: tuple(map(_logprob, entries)),
    "prompt_token_ids": tuple,
    "token_ids": tuple,
    "logprobs": lambda entries: tuple(map(_logprob, entries)),
    "finish_reason": _finish_reason,
    "tool_calls": lambda parts: tuple(map(_tool_call, parts)),
}


def model_info_request() -> generation_pb2.GetModelInfoRequest:
    """The request of GetModelInfo."""
    return generation_pb2.GetModelInfoRequest()


def model_info(response: generation_pb2.GetModelInfoResponse) -> ModelInfo:
    """The served model as values."""
    values = {field.name: getattr(response, field.name) for field in fields(ModelInfo)}
    return ModelInfo(**values | {"eos_token_ids": tuple(response.eos_token_ids)})
