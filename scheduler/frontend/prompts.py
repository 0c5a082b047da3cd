"""Turns a prompt of any kind into token ids."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.frontend.chat_template import ChatTemplateError
from scheduler.frontend.errors import Violation
from scheduler.frontend.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from scheduler.frontend.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompt:
    """field: the request's field that the prompt came in. token_ids: empty if there are violations."""

    field: str
    token_ids: tuple[int, ...] = ()
    violations: tuple[Violation, ...] = ()


def prompt_size(prompt: Prompt | None) -> int:
    """Characters to tokenise, the measure of the work that `encode_prompt` is."""
    match prompt:
        case TextPrompt():
            return len(prompt.text)
        case ChatPrompt():
            return sum(len(content) for _, content in prompt.messages)
        case _:
            return 0


def encode_prompt(prompt: Prompt | None, tokenizer: Tokenizer) -> EncodedPrompt:
    """Token ids, not yet checked against the model's limits, or why there are none."""
    match prompt:
        case None:
            return _refused("prompt", "is missing, give one of text, chat and token_ids")
        case TokenPrompt():
            return EncodedPrompt(field="token_ids.ids", token_ids=prompt.ids)
        case TextPrompt() if not tokenizer.has_text:
            return _refused("text", "the model has no tokenizer, give token_ids")
        case TextPrompt():
            return EncodedPrompt(field="text", token_ids=tokenizer.encode(prompt.text))
        case ChatPrompt():
            return _encode_chat(prompt, tokenizer)


def _encode_chat(prompt: ChatPrompt, tokenizer: Tokenizer) -> EncodedPrompt:
    if not tokenizer.has_chat_template:
        return _refused("chat", "the model has no chat template, give text or token_ids")
    if not prompt.messages:
        return _refused("chat.messages", "is empty, must have at least one message")
    for index, (role, _) in enumerate(prompt.messages):
        if not role:
            return _refused(f"chat.messages[{index}].role", "is empty")
    messages = [{"role": role, "content": content} for role, content in prompt.messages]
    try:
        token_ids = tokenizer.encode_chat(messages, add_generation_prompt=prompt.add_generation_prompt)
    except ChatTemplateError as error:
        return _refused("chat.messages", f"the model's chat template refuses them: {error}")
    return EncodedPrompt(field="chat.messages", token_ids=token_ids)


def _refused(field: str, description: str) -> EncodedPrompt:
    return EncodedPrompt(field=field, violations=(Violation(field=field, description=description),))
