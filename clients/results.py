"""What a call gives back: typed, immutable values without a trace of protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # EOS, a stop token id or a stop string
    LENGTH = "length"  # max_tokens or the context limit
    UNKNOWN = "unknown"  # a reason that is newer than this client


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob:
    """One of the most likely tokens at a place; logprob is a natural logarithm. text, token_bytes: the token's own."""

    token_id: int
    logprob: float
    text: str = ""
    token_bytes: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """The raw log probability (natural) of a generated token, and the most likely tokens at its place, best first.

    text: the token's own, with U+FFFD where it is not whole characters; token_bytes are exact.
    """

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...] = ()
    text: str = ""
    token_bytes: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """What is new of one tool call. index: 0, 1, ... within the sequence. id, name: in the call's first delta only."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A whole tool call. arguments: as the model wrote them, JSON unless it erred or was cut off."""

    id: str = ""
    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request consumed: tokens, and seconds in the queue, to the first token, and from there to the last."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one sequence has generated since its last delta.

    index: the sequence, 0 .. n-1.
    text: never half a character; all deltas' texts of a sequence concatenated are its whole text.
    logprobs: one per token id if logprobs were asked for, else empty.
    finish_reason: None until the sequence has ended.
    stop_token_id, stop_string: the EOS or stop token id, or the stop string, that ended it.
    reasoning, tool_calls: what parsers found, which is not in the text.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    stop_string: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class Piece(NamedTuple):
    """One message of a stream. The last one of a stream has the usage, the first one of an echo the prompt's ids.
    prompt_logprobs: of the prompt's tokens from the second on, as they come."""

    request_id: str = ""
    deltas: tuple[Delta, ...] = ()
    usage: Usage | None = None
    prompt_token_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The whole output of one sequence; the fields are those of its deltas put together."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    stop_token_id: int | None
    stop_string: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole answer.

    choices: one per sequence, by index; what there is of the first can be had from the completion itself.
    prompt_token_ids: of a request with echo.
    prompt_logprobs: if asked for, of each token of the prompt but the first.
    """

    request_id: str
    choices: tuple[Choice, ...]
    usage: Usage | None
    prompt_token_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """Of the first sequence."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the first sequence."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Of the first sequence."""
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> FinishReason | None:
        """Of the first sequence."""
        return self.choices[0].finish_reason

    @property
    def stop_token_id(self) -> int | None:
        """Of the first sequence."""
        return self.choices[0].stop_token_id

    @property
    def stop_string(self) -> str | None:
        """Of the first sequence."""
        return self.choices[0].stop_string

    @property
    def reasoning(self) -> str:
        """Of the first sequence."""
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Of the first sequence."""
        return self.choices[0].tool_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A prompt as token ids. token_bytes: of each, if they were asked for. rendered: a chat's text."""

    token_ids: tuple[int, ...]
    token_bytes: tuple[bytes, ...]
    rendered: str
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The served model and the limits of a request, as in GetModelInfoResponse."""

    served_model_name: str
    architecture: str
    dtype: str
    max_model_len: int
    logits_width: int
    block_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    tokenizer_digest: bytes
    weights_digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPrompt:
    """A prompt's tokens, and the logprob of each but the first, given those before it."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]


def join(
    request_id: str,
    deltas: Iterable[Delta],
    usage: Usage | None,
    prompt_token_ids: tuple[int, ...] = (),
    prompt_logprobs: Iterable[TokenLogprob] = (),
) -> Completion:
    """The whole answer that the deltas of a request add up to."""
    of_sequence: dict[int, list[Delta]] = {0: []}
    for delta in deltas:
        of_sequence.setdefault(delta.index, []).append(delta)
    choices = tuple(_choice(index, parts) for index, parts in sorted(of_sequence.items()))
    return Completion(
        request_id=request_id,
        choices=choices,
        usage=usage,
        prompt_token_ids=prompt_token_ids,
        prompt_logprobs=tuple(prompt_logprobs),
    )


def _choice(index: int, deltas: Sequence[Delta]) -> Choice:
    return Choice(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
        finish_reason=deltas[-1].finish_reason if deltas else None,
        stop_token_id=deltas[-1].stop_token_id if deltas else None,
        stop_string=deltas[-1].stop_string if deltas else None,
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=_tool_calls([part for delta in deltas for part in delta.tool_calls]),
    )


def _tool_calls(parts: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
    begins = [part for part in parts if part.name]
    return tuple(
        ToolCall(
            id=begin.id,
            name=begin.name,
            arguments="".join(part.arguments for part in parts if part.index == begin.index),
        )
        for begin in begins
    )
