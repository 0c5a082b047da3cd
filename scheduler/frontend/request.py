"""A request as it arrived, before any rule is applied: plain values, so that the rules need no protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """As in the proto of the same name. arguments: JSON."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """As in the proto of the same name."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation, oldest message first; the rest as in the proto. add_generation_prompt: None if it was not set."""

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: tuple[str, ...] = ()
    template_kwargs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """Token ids, of any number: not copied before that is checked."""

    ids: Sequence[int]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingInput:
    """The fields of SamplingParams under their own names and in their order; None is a field that was not set."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop_in_output: bool | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    echo: bool | None = None
    json_schema: str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateInput:
    """GenerateRequest. request_id: not empty, made by the service if the caller gave none. unknown_fields: paths of
    fields that this version's protos do not have, the first few."""

    request_id: str
    prompt: Prompt | None = None
    sampling: SamplingInput = field(default_factory=SamplingInput)
    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""
    model: str = ""
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    stream_interval: int = 1
    unknown_fields: tuple[str, ...] = ()
