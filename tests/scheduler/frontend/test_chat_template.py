"""Chat templates: what the environment offers, and what it forbids."""

from __future__ import annotations

from datetime import datetime

import pytest

from scheduler.frontend.chat_template import ChatTemplate, ChatTemplateError
from scheduler.frontend.errors import UnsupportedModelError


def render(source: str, content: str = "x", **special_tokens: str) -> str:
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "y"}]
    return ChatTemplate(source, special_tokens).render(messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>x"),
        ("{% for m in messages %}\n  {% if loop.last %}{% break %}{% endif %}\n{{ m.role }}\n{% endfor %}", "user\n"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "x"}'),
        ("{% generation %}a{{ messages[1].content }}{% endgeneration %}b", "ayb"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{% if tools %}t{% endif %}{% if documents is none %}d{% endif %}{{ add_generation_prompt }}", "dTrue"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("{{ eos_token is defined }}", "False"),
    ],
)
def test_what_templates_expect(source: str, expected: str) -> None:
    assert render(source, bos_token="<s>") == expected


def test_tojson_leaves_characters_as_they_are() -> None:
    assert render("{{ messages[0].content | tojson }}", content="<é & '日'>") == "\"<é & '日'>\""


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{{ 1 // 0 }}", "zero"),
    ],
)
def test_failures_of_a_template_are_errors_of_the_messages(source: str, named: str) -> None:
    with pytest.raises(ChatTemplateError, match=named):
        render(source)


def test_a_template_that_is_no_jinja_is_refused_at_load() -> None:
    with pytest.raises(UnsupportedModelError, match="chat template"):
        ChatTemplate("{% for %}", {})
