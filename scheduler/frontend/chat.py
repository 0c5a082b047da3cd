"""Renders a conversation with the model's chat template: checks its JSON, and gives the template what it expects."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from scheduler.frontend.chat_template import ChatTemplate, ChatTemplateError
from scheduler.frontend.errors import InvalidRequestError, Violation
from scheduler.frontend.request import ChatMessage, ChatPrompt

_MAX_TOOLS: Final = 1024
# Marks the end of the last message's content in what the template makes of it; from the private use area of Unicode. It
# goes with a space behind it, by whose absence a template shows that it trims what it writes.
_CONTINUES_HERE: Final = "\ue000octavo\ue001"


def render_chat(chat: ChatPrompt, template: ChatTemplate) -> str:
    """The prompt's text. Raises InvalidRequestError that names the field."""
    _check(chat)
    messages = [_message(message, f"chat.messages[{index}]") for index, message in enumerate(chat.messages)]
    tools = [_json_object(tool, f"chat.tools[{index}]") for index, tool in enumerate(chat.tools)]
    variables = _json_object(chat.template_kwargs or "{}", "chat.template_kwargs")
    for name in sorted(template.reserved & variables.keys()):
        _refuse("chat.template_kwargs", f"has {name!r}, which the server sets")
    if chat.continue_final_message:
        messages[-1]["content"] += f"{_CONTINUES_HERE} "
    add_generation_prompt = chat.add_generation_prompt is not False and not chat.continue_final_message
    try:
        text = template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables)
    except ChatTemplateError as error:
        _refuse("chat.messages", f"the model's chat template refuses them: {error}")
    return _up_to_final_content(text) if chat.continue_final_message else text


def _check(chat: ChatPrompt) -> None:
    if not chat.messages:
        _refuse("chat.messages", "is empty, must have at least one message")
    if len(chat.tools) > _MAX_TOOLS:
        _refuse("chat.tools", f"has {len(chat.tools)} tools, must have at most {_MAX_TOOLS}")
    if chat.continue_final_message and chat.add_generation_prompt:
        _refuse("chat.add_generation_prompt", "is true, must not be with chat.continue_final_message: leave it out")
    if chat.continue_final_message and not chat.messages[-1].content:
        _refuse(f"chat.messages[{len(chat.messages) - 1}].content", "is empty, chat.continue_final_message needs some")


def _message(message: ChatMessage, path: str) -> dict[str, Any]:
    """What templates on the Hub expect of a message."""
    if not message.role:
        _refuse(f"{path}.role", "is empty")
    value: dict[str, Any] = {"role": message.role, "content": message.content}
    for name, given in (
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
        ("reasoning_content", message.reasoning),
    ):
        if given:
            value[name] = given
    if message.tool_calls:
        value["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {
                    "name": call.name,
                    # An object: templates write it out as JSON themselves.
                    "arguments": _json_object(call.arguments or "{}", f"{path}.tool_calls[{index}].arguments"),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
    return value


def _json_object(text: str, field: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        _refuse(field, f"is not JSON: {error}")
    if not isinstance(value, dict):
        _refuse(field, f"is a JSON {type(value).__name__}, must be an object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _up_to_final_content(text: str) -> str:
    end = text.rfind(_CONTINUES_HERE)
    if end < 0:
        _refuse(
            "chat.continue_final_message", "is true, but the model's chat template does not write out the last message"
        )
    content = text[:end].replace(_CONTINUES_HERE, "")
    return content if text.startswith(f"{_CONTINUES_HERE} ", end) else content.rstrip()


def _refuse(field: str, description: str) -> NoReturn:
    raise InvalidRequestError((Violation(field=field, description=description),))
