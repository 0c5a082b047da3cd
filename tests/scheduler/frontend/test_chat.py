"""What a chat template gets to see, and what is wrong with a chat by the name of the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.frontend.chat import render_chat
from scheduler.frontend.chat_template import ChatTemplate
from scheduler.frontend.errors import InvalidRequestError
from scheduler.frontend.request import ChatMessage, ChatPrompt, ToolCall

DUMP = ChatTemplate(
    "{{ {'m': messages, 't': tools, 'g': add_generation_prompt, 'k': k} | tojson }}", {"bos_token": "<s>"}
)
TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TOOL = json.dumps({"type": "function", "function": {"name": "f", "parameters": {"minimum": 5, "a": None}}})


def said(content: str = "Hi", role: str = "user", **fields: Any) -> ChatMessage:
    return ChatMessage(role=role, content=content, **fields)


def seen(**chat: Any) -> dict[str, Any]:
    chat.setdefault("messages", (said(),))
    value: dict[str, Any] = json.loads(render_chat(ChatPrompt(**chat, template_kwargs='{"k": {"x": [1]}}'), DUMP))
    return value


def refused(template: ChatTemplate = DUMP, **chat: Any) -> tuple[str, str]:
    chat.setdefault("messages", (said(),))
    with pytest.raises(InvalidRequestError) as error:
        render_chat(ChatPrompt(**chat), template)
    (violation,) = error.value.violations
    return violation.field, violation.description


def test_messages_of_every_role() -> None:
    call = ToolCall(id="c1", name="f", arguments='{"x": 1, "y": {"z": null}}')
    messages = (
        said("Be brief.", "system"),
        said(name="Ada"),
        said("", "assistant", tool_calls=(call, ToolCall(id="c2", name="g")), reasoning="hm"),
        said("42", "tool", tool_call_id="c1", name="f"),
    )
    assert seen(messages=messages)["m"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": "Ada"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {"type": "function", "id": "c1", "function": {"name": "f", "arguments": {"x": 1, "y": {"z": None}}}},
                {"type": "function", "id": "c2", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "f"},
    ]


def test_tools_and_more_variables_are_json_and_stay_as_they_are() -> None:
    value = seen(tools=(TOOL, "{}"))
    assert json.dumps(value["t"][0]) == TOOL  # with the order of its keys, and 5 no float
    assert value["t"][1] == {}
    assert value["k"] == {"x": [1]}
    assert seen()["t"] is None


@pytest.mark.parametrize(
    ("chat", "ending"),
    [
        ({}, "[user]Hi[end][assistant]"),
        ({"add_generation_prompt": True}, "[user]Hi[end][assistant]"),
        ({"add_generation_prompt": False}, "[user]Hi[end]"),
        ({"continue_final_message": True}, "[user]Hi"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "[user]Hi"),
        (
            {"continue_final_message": True, "messages": (said("end"), said("[end] e ", "assistant"))},
            "[assistant][end] e",
        ),
    ],
)
def test_how_the_prompt_ends(chat: dict[str, Any], ending: str) -> None:
    assert render_chat(ChatPrompt(**{"messages": (said(),)} | chat), ChatTemplate(TURNS, {})).endswith(ending)


def test_a_message_that_goes_on_keeps_its_spaces_unless_the_template_trims() -> None:
    template = ChatTemplate("{{ messages[-1].content }}[end]", {})
    assert render_chat(ChatPrompt(messages=(said(" so "),), continue_final_message=True), template) == " so "


def test_a_template_for_tools_is_taken_for_a_chat_with_tools() -> None:
    template = ChatTemplate("plain", {}, "with {{ tools | length }}")
    assert render_chat(ChatPrompt(messages=(said(),)), template) == "plain"
    assert render_chat(ChatPrompt(messages=(said(),), tools=(TOOL,)), template) == "with 1"


@pytest.mark.parametrize(
    ("chat", "field", "named"),
    [
        ({"messages": ()}, "chat.messages", "is empty"),
        ({"messages": (said(role=""),)}, "chat.messages[0].role", "is empty"),
        ({"tools": (TOOL, "no")}, "chat.tools[1]", "is not JSON: Expecting value"),
        ({"tools": ("[]",)}, "chat.tools[0]", "is a JSON list, must be an object"),
        ({"tools": ('{"a": NaN}',)}, "chat.tools[0]", "NaN is no JSON number"),
        ({"tools": ('{"a":' * 100_000,)}, "chat.tools[0]", "is not JSON"),
        ({"tools": ("{}",) * 1025}, "chat.tools", "has 1025 tools, must have at most 1024"),
        ({"template_kwargs": "1"}, "chat.template_kwargs", "is a JSON int, must be an object"),
        ({"template_kwargs": '{"messages": []}'}, "chat.template_kwargs", "has 'messages', which the server sets"),
        ({"template_kwargs": '{"bos_token": ""}'}, "chat.template_kwargs", "has 'bos_token', which the server sets"),
        (
            {"messages": (said(), said(role="assistant", tool_calls=(ToolCall(name="f", arguments="x"),)))},
            "chat.messages[1].tool_calls[0].arguments",
            "is not JSON",
        ),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "chat.add_generation_prompt",
            "must not be with chat.continue_final_message",
        ),
        ({"continue_final_message": True, "messages": (said(""),)}, "chat.messages[0].content", "is empty"),
    ],
)
def test_what_is_wrong_is_named(chat: dict[str, Any], field: str, named: str) -> None:
    found, description = refused(**chat)
    assert found == field
    assert named in description


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.nothing() }}", "nothing"),
        ("{% for i in range(1000000) %}{% endfor %}", "Range too big"),
    ],
)
def test_a_template_that_fails_is_named_with_its_message(source: str, named: str) -> None:
    field, description = refused(ChatTemplate(source, {}))
    assert field == "chat.messages"
    assert description.startswith("the model's chat template refuses them: ")
    assert named in description


def test_a_template_that_leaves_the_last_message_out_cannot_continue_it() -> None:
    assert refused(ChatTemplate("x", {}), continue_final_message=True)[0] == "chat.continue_final_message"
