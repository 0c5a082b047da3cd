"""What a call gives back: typed, immutable values without a trace of protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # EOS or a stop token id
    LENGTH = "length"  # max_tokens or the context limit
    UNKNOWN = "unknown"  # a reason that is newer than this client


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob:
    """One of the most likely tokens at a place; logprob is a natural logarithm."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """The raw log probability (natural) of a generated token, and the most likely tokens at its place, best first."""

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...] = ()


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
    stop_token_id: the EOS or stop token id that ended it.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One message of a stream. The last one of a stream has the usage."""

    request_id: str
    deltas: tuple[Delta, ...]
    usage: Usage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole answer."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    stop_token_id: int | None
    usage: Usage | None


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


def join(request_id: str, deltas: list[Delta], usage: Usage | None) -> Completion:
    """The whole answer that the deltas of one sequence add up to."""
    last = deltas[-1] if deltas else None
    return Completion(
        request_id=request_id,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
        finish_reason=last.finish_reason if last else None,
        stop_token_id=last.stop_token_id if last else None,
        usage=usage,
    )
