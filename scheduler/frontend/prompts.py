"""Turns a prompt of any kind into token ids, unless its text is too long to be worth the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.frontend.chat import render_chat
from scheduler.frontend.errors import InvalidRequestError, Violation
from scheduler.frontend.request import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from scheduler.frontend.tokenizer import Tokenizer

_MESSAGE_CHARACTERS: Final = 16  # about what a template writes around each message


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompt:
    """field: the request's field that the prompt came in. token_ids: empty if there are violations. text: what they
    were made of, a chat's as its template has it; empty if only ids were given."""

    field: str
    token_ids: Sequence[int] = ()
    text: str = ""
    violations: tuple[Violation, ...] = ()


def prompt_size(prompt: Prompt | None) -> int:
    """Characters to tokenise, the measure of the work that `encode_prompt` is."""
    match prompt:
        case TextPrompt():
            return len(prompt.text)
        case ChatPrompt():
            return sum(map(_message_size, prompt.messages)) + sum(map(len, prompt.tools)) + len(prompt.template_kwargs)
        case _:
            return 0


def _message_size(message: ChatMessage) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return _MESSAGE_CHARACTERS + len(message.role) + len(message.content) + len(message.reasoning) + calls


def encode_prompt(
    prompt: Prompt | None, tokenizer: Tokenizer, max_model_len: int, *, special_tokens: bool = True
) -> EncodedPrompt:
    """Token ids, not yet checked against the model's limits, or why there are none.

    special_tokens: put those around a plain text that the model expects there. A text that would have more than
    max_model_len tokens even if each were the longest there is, is not tokenised.
    """
    match prompt:
        case None:
            return _refused("prompt", "is missing, give one of text, chat and token_ids")
        case TokenPrompt():
            return EncodedPrompt(field="token_ids.ids", token_ids=prompt.ids)
        case TextPrompt() if not tokenizer.has_text:
            return _refused("text", "the model has no tokenizer, give token_ids")
        case TextPrompt():
            return _encode_text("text", prompt.text, tokenizer, max_model_len, special_tokens=special_tokens)
        case ChatPrompt():
            return _encode_chat(prompt, tokenizer, max_model_len)


def _encode_chat(prompt: ChatPrompt, tokenizer: Tokenizer, max_model_len: int) -> EncodedPrompt:
    if not tokenizer.has_chat_template:
        return _refused("chat", "the model has no chat template, give text or token_ids")
    try:
        text = render_chat(prompt, tokenizer.chat_template)
    except InvalidRequestError as error:
        return EncodedPrompt(field="chat.messages", violations=error.violations)
    # The template has written the special tokens itself.
    return _encode_text("chat.messages", text, tokenizer, max_model_len, special_tokens=False)


def _encode_text(
    field: str, text: str, tokenizer: Tokenizer, max_model_len: int, *, special_tokens: bool
) -> EncodedPrompt:
    size, most = len(text.encode()), max_model_len * tokenizer.max_token_bytes
    if size > most:
        return _refused(
            field,
            f"has {size} bytes of text, must have at most {most} (max_model_len {max_model_len}, times the "
            f"{tokenizer.max_token_bytes} bytes of the longest token)",
        )
    return EncodedPrompt(field=field, token_ids=tokenizer.encode(text, special_tokens=special_tokens), text=text)


def _refused(field: str, description: str) -> EncodedPrompt:
    return EncodedPrompt(field=field, violations=(Violation(field=field, description=description),))
