"""What a caller may ask for. Field by field the meaning is that of generation.proto and sampling.proto.

A parameter that is None is not sent: the model's generation_config decides, then the server's default. The server
checks ranges; what the wire format cannot hold at all is refused when the request is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NotRequired, TypedDict

from clients.results import ToolCall

WHOLE_ANSWER: Final = 256
"""Tokens per message where nobody reads before the end: few messages, and yet one now and then, so that no proxy takes
the stream for idle."""


class Message(TypedDict):
    """One turn of a conversation. role: "system", "user", "assistant", "tool" or what else the chat template knows.

    tool_calls: what the assistant called in this turn. tool_call_id: the call that a tool's message answers. name: of
    the speaker or the tool. reasoning: what the assistant thought before it spoke.
    """

    role: str
    content: str
    tool_calls: NotRequired[Sequence[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    reasoning: NotRequired[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn and when a generation ends. Of the last five at most one is given; a schema may be a
    mapping."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop_token_ids: Sequence[int] | None = None
    stop: Sequence[str] | None = None
    include_stop_in_output: bool | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    echo: bool | None = None
    json_schema: str | Mapping[str, Any] | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None


class SamplingKeywords(TypedDict, total=False):
    """The fields of SamplingParams as keyword arguments of a call."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop_token_ids: Sequence[int] | None
    stop: Sequence[str] | None
    include_stop_in_output: bool | None
    ignore_eos: bool | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    logprobs: int | None
    prompt_logprobs: int | None
    n: int | None
    skip_special_tokens: bool | None
    spaces_between_special_tokens: bool | None
    echo: bool | None
    json_schema: str | Mapping[str, Any] | None
    json_object: bool | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None


class ChatKeywords(TypedDict, total=False):
    """What goes with messages.

    add_generation_prompt: begin the assistant's turn; the server's default is yes.
    continue_final_message: let the output go on with the last message.
    tools: what the model may call, each as JSON: {"type": "function", "function": {"name": ..., "parameters": ...}}.
    template_kwargs: more variables for the chat template, as JSON.
    """

    add_generation_prompt: bool | None
    continue_final_message: bool
    tools: Sequence[Mapping[str, Any]]
    template_kwargs: Mapping[str, Any]


class RequestKeywords(SamplingKeywords, ChatKeywords, total=False):
    """The keyword arguments of `generate` and `complete`, besides the prompt and the timeout.

    messages, token_ids: the prompt, if it is not text.
    tool_call_parser, reasoning_parser: how these are found in the output, as in GenerateRequest; None is the server's
      choice.
    sampling_params: a ready SamplingParams; sampling keywords given as well override its fields.
    request_id: names the request in the server's logs; the server makes one if none is given.
    tenant: whom the request is accounted to.
    priority: lower goes first.
    cache_salt: requests share cached prompt blocks only with requests of the same salt.
    model: the served name; if given, another model is refused.
    stream_interval: new tokens of a sequence that a message waits for, but for the first and the last; None is 1 for
      `generate` and WHOLE_ANSWER for `complete`.
    """

    messages: Sequence[Message] | None
    token_ids: Sequence[int] | None
    sampling_params: SamplingParams | None
    request_id: str
    tenant: str
    priority: int | None
    cache_salt: str
    model: str
    tool_call_parser: str | None
    reasoning_parser: str | None
    stream_interval: int | None


class ScoreKeywords(TypedDict, total=False):
    """The keyword arguments of `score_prompt`, besides the prompt and the timeout; those that RequestKeywords has mean
    the same.

    top_logprobs: how many of the most likely tokens to report in each place besides.
    """

    messages: Sequence[Message] | None
    token_ids: Sequence[int] | None
    top_logprobs: int
    request_id: str
    tenant: str
    priority: int | None
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt of one kind."""

    prompt: str | None = None
    messages: Sequence[Message] | None = None
    token_ids: Sequence[int] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, Any]] | None = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = [name for name in ("prompt", "messages", "token_ids") if getattr(self, name) is not None]
        if len(kinds) != 1:
            given = " and ".join(kinds) if kinds else "none"
            raise TypeError(f"give exactly one of prompt, messages and token_ids, not {given}")
        of_chats = [name for name in ChatKeywords.__annotations__ if getattr(self, name)]
        if of_chats and self.messages is None:
            raise TypeError(f"{' and '.join(of_chats)}: only with messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Prompt):
    """A request as it is sent: a prompt and how to continue it."""

    sampling_params: SamplingParams = SamplingParams()
    request_id: str = ""
    tenant: str = ""
    priority: int | None = None
    cache_salt: str = ""
    model: str = ""
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    stream_interval: int | None = None


_SAMPLING_FIELDS = frozenset(each.name for each in fields(SamplingParams))


def whole(keywords: RequestKeywords) -> RequestKeywords:
    """The keywords of a request whose answer is read at its end."""
    return keywords if keywords.get("stream_interval") is not None else {**keywords, "stream_interval": WHOLE_ANSWER}


def make_request(prompt: str | None, keywords: RequestKeywords) -> Request:
    """Sorts the keyword arguments of a call into a Request. Unknown ones raise TypeError, as any function does."""
    others: dict[str, Any] = dict(keywords)
    params: SamplingParams = others.pop("sampling_params", None) or SamplingParams()
    sampling = {name: others.pop(name) for name in _SAMPLING_FIELDS & others.keys()}
    return Request(prompt=prompt, sampling_params=replace(params, **sampling), **others)
