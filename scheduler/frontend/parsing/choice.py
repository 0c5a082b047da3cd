"""Which parsers a request's output goes through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scheduler.frontend.errors import Violation
from scheduler.frontend.parsing.parts import OutputParser, Parts
from scheduler.frontend.parsing.reasoning import BEGIN, END, REASONING_PARSERS, ReasoningParser
from scheduler.frontend.parsing.tool_calls import TOOL_CALL_PARSERS
from scheduler.frontend.request import ChatPrompt, GenerateInput

if TYPE_CHECKING:
    from scheduler.frontend.prompts import EncodedPrompt
    from scheduler.frontend.tokenizer import Tokenizer

NONE: Final = "none"
TOOL_CALL_CHOICES: Final = (*TOOL_CALL_PARSERS, NONE)
REASONING_CHOICES: Final = (*REASONING_PARSERS, NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserDefaults:
    """What a chat goes through that does not say. tool_call: if it has tools."""

    tool_call: str = NONE
    reasoning: str = NONE


NO_PARSERS: Final = ParserDefaults()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserChoice:
    """Of one request. inside: its prompt ends within the reasoning."""

    tool_call: str = NONE
    reasoning: str = NONE
    inside: bool = False

    def marker_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that the parsers must see, though the text is to be without special tokens."""
        markers = () if self.tool_call == NONE else TOOL_CALL_PARSERS[self.tool_call].special
        markers += () if self.reasoning == NONE else (BEGIN, END)
        ids = map(tokenizer.special_token_id, markers)
        return frozenset(id_ for id_ in ids if id_ is not None)

    def make(self) -> OutputParser | None:
        """For one sequence; None if its text is left as it is."""
        tool_calls = None if self.tool_call == NONE else TOOL_CALL_PARSERS[self.tool_call]()
        if self.reasoning == NONE:
            return tool_calls
        reasoning = ReasoningParser(inside=self.inside)
        return reasoning if tool_calls is None else _Chained(reasoning, tool_calls)


class _Chained:
    """Reasoning first; tool calls are looked for in the rest."""

    def __init__(self, first: OutputParser, second: OutputParser) -> None:
        self._first = first
        self._second = second

    def feed(self, text: str) -> Parts:
        parts = self._first.feed(text)
        return replace(parts, text="") + self._second.feed(parts.text)

    def flush(self) -> Parts:
        parts = self._first.flush()
        return replace(parts, text="") + self._second.feed(parts.text) + self._second.flush()


def choose_parsers(request: GenerateInput, prompt: EncodedPrompt, defaults: ParserDefaults) -> ParserChoice:
    """The request's own choice, else the server's."""
    chat = request.prompt if isinstance(request.prompt, ChatPrompt) else None
    tool_call = defaults.tool_call if chat is not None and chat.tools else NONE
    reasoning = defaults.reasoning if chat is not None else NONE
    return ParserChoice(
        tool_call=tool_call if request.tool_call_parser is None else request.tool_call_parser,
        reasoning=reasoning if request.reasoning_parser is None else request.reasoning_parser,
        inside=prompt.text.rstrip().endswith(BEGIN),
    )


def check_parsers(request: GenerateInput) -> Iterator[Violation]:
    """Names that no parser has."""
    known = {"tool_call_parser": TOOL_CALL_CHOICES, "reasoning_parser": REASONING_CHOICES}
    for field, choices in known.items():
        value = getattr(request, field)
        if value is not None and value not in choices:
            names = ", ".join(choices)
            yield Violation(field=field, description=f"is {value[:64]!r}, must be one of {names}")
