"""Renders chat templates: Jinja programs that come with a model, run in a sandbox.

The environment offers what templates on the Hub expect of transformers (which cannot be used here, because importing
it imports torch): trimmed blocks, loop controls, `raise_exception`, `strftime_now`, an unescaped `tojson`, and the
`generation` tag, which marks assistant tokens in training and renders to its body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from scheduler.frontend.errors import UnsupportedModelError


class ChatTemplateError(Exception):
    """The template refused the messages, or failed on them."""


class ChatTemplate:
    """A compiled template. special_tokens: variables such as bos_token, by name. tool_source: another one for chats
    with tools, which some models have."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None) -> None:
        self._template = _compile(source)
        self._tool_template = self._template if tool_source is None else _compile(tool_source)
        self._special_tokens = dict(special_tokens)

    @property
    def reserved(self) -> frozenset[str]:
        """Names of variables that have their values from elsewhere."""
        return frozenset(("messages", "tools", "add_generation_prompt", *self._special_tokens))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The prompt's text. variables: more of them, none of a reserved name. Raises ChatTemplateError."""
        template = self._tool_template if tools else self._template
        try:
            return template.render(
                {"documents": None}
                | dict(variables)
                | self._special_tokens
                | {
                    "messages": [dict(message) for message in messages],
                    "add_generation_prompt": add_generation_prompt,
                    "tools": list(tools) or None,
                }
            )
        except Exception as error:
            # A template is a program: what it does with messages that it does not expect may fail in any way.
            raise ChatTemplateError(f"{error}" or type(error).__name__) from error


def _compile(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise UnsupportedModelError(f"chat template: {error}") from error


class _GenerationTag(Extension):
    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
