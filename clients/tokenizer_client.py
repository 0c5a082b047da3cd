"""Between the clients' values and the messages of octavo.serving.v1.TokenizerService."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from clients.generation_client import assign, set_prompt
from clients.request import ChatKeywords, Message, Prompt
from clients.results import Tokens
from octavo.serving.v1 import tokenizer_pb2, tokenizer_pb2_grpc

TokenizerStub: Final = tokenizer_pb2_grpc.TokenizerServiceStub

_T = TypeVar("_T", tokenizer_pb2.TokenizeRequest, tokenizer_pb2.CountTokensRequest)


class PromptKeywords(ChatKeywords, total=False):
    """The keyword arguments of `tokenize` and `count_tokens`, besides a text: messages or token_ids, if it is not text.

    model: the served name; if given, another model is refused.
    """

    messages: Sequence[Message] | None
    token_ids: Sequence[int] | None
    model: str


def tokenize_request(
    text: str | None, without_special_tokens: bool, with_token_bytes: bool, keywords: PromptKeywords
) -> tokenizer_pb2.TokenizeRequest:
    """Raises InvalidRequestError for a value that its field cannot hold."""
    message = _with_prompt(tokenizer_pb2.TokenizeRequest(), text, keywords)
    assign(message, "without_special_tokens", without_special_tokens, "without_special_tokens")
    assign(message, "with_token_bytes", with_token_bytes, "with_token_bytes")
    return message


def tokens(response: tokenizer_pb2.TokenizeResponse) -> Tokens:
    """The answer of Tokenize as values."""
    return Tokens(
        token_ids=tuple(response.token_ids),
        token_bytes=tuple(response.token_bytes),
        rendered=response.rendered,
        max_model_len=response.max_model_len,
    )


def count_request(text: str | None, keywords: PromptKeywords) -> tokenizer_pb2.CountTokensRequest:
    """As `tokenize_request`."""
    return _with_prompt(tokenizer_pb2.CountTokensRequest(), text, keywords)


def detokenize_request(
    token_ids: Sequence[int], skip_special_tokens: bool | None, spaces_between_special_tokens: bool
) -> tokenizer_pb2.DetokenizeRequest:
    """As `tokenize_request`."""
    message = tokenizer_pb2.DetokenizeRequest()
    assign(message, "token_ids", token_ids, "token_ids")
    assign(message, "skip_special_tokens", skip_special_tokens, "skip_special_tokens")
    assign(message, "spaces_between_special_tokens", spaces_between_special_tokens, "spaces_between_special_tokens")
    return message


def _with_prompt(message: _T, text: str | None, keywords: PromptKeywords) -> _T:
    given: dict[str, Any] = dict(keywords)
    assign(message, "model", given.pop("model", ""), "model")
    set_prompt(message, Prompt(prompt=text, **given))
    return message
