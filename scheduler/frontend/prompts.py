"""Turns a prompt of any kind into token ids, unless its text is too long to be worth the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.frontend.chat_template import ChatTemplateError
from scheduler.frontend.errors import Violation
from scheduler.frontend.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from scheduler.frontend.tokenizer import Tokenizer

_MESSAGE_CHARACTERS: Final = 16  # about what a template writes around each message


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompt:
    """field: the request's field that the prompt came in. token_ids: empty if there are violations."""

    field: str
    token_ids: Sequence[int] = ()
    violations: tuple[Violation, ...] = ()


def prompt_size(prompt: Prompt | None) -> int:
    """Characters to tokenise, the measure of the work that `encode_prompt` is."""
    match prompt:
        case TextPrompt():
            return len(prompt.text)
        case ChatPrompt():
            return sum(_MESSAGE_CHARACTERS + len(role) + len(content) for role, content in prompt.messages)
        case _:
            return 0


def encode_prompt(prompt: Prompt | None, tokenizer: Tokenizer, max_model_len: int) -> EncodedPrompt:
    """Token ids, not yet checked against the model's limits, or why there are none.

    A text that would have more than max_model_len tokens even if each were the longest there is, is not tokenised.
    """
    match prompt:
        case None:
            return _refused("prompt", "is missing, give one of text, chat and token_ids")
        case TokenPrompt():
            return EncodedPrompt(field="token_ids.ids", token_ids=prompt.ids)
        case TextPrompt() if not tokenizer.has_text:
            return _refused("text", "the model has no tokenizer, give token_ids")
        case TextPrompt():
            return _encode_text("text", prompt.text, tokenizer, max_model_len)
        case ChatPrompt():
            return _encode_chat(prompt, tokenizer, max_model_len)


def _encode_chat(prompt: ChatPrompt, tokenizer: Tokenizer, max_model_len: int) -> EncodedPrompt:
    if not tokenizer.has_chat_template:
        return _refused("chat", "the model has no chat template, give text or token_ids")
    if not prompt.messages:
        return _refused("chat.messages", "is empty, must have at least one message")
    for index, (role, _) in enumerate(prompt.messages):
        if not role:
            return _refused(f"chat.messages[{index}].role", "is empty")
    messages = [{"role": role, "content": content} for role, content in prompt.messages]
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt.add_generation_prompt)
    except ChatTemplateError as error:
        return _refused("chat.messages", f"the model's chat template refuses them: {error}")
    return _encode_text("chat.messages", text, tokenizer, max_model_len, rendered=True)


def _encode_text(
    field: str, text: str, tokenizer: Tokenizer, max_model_len: int, *, rendered: bool = False
) -> EncodedPrompt:
    size, most = len(text.encode()), max_model_len * tokenizer.max_token_bytes
    if size > most:
        return _refused(
            field,
            f"has {size} bytes of text, must have at most {most} (max_model_len {max_model_len}, times the "
            f"{tokenizer.max_token_bytes} bytes of the longest token)",
        )
    return EncodedPrompt(field=field, token_ids=tokenizer.encode(text, rendered=rendered))


def _refused(field: str, description: str) -> EncodedPrompt:
    return EncodedPrompt(field=field, violations=(Violation(field=field, description=description),))
