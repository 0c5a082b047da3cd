"""Tool calls and reasoning: what becomes of a text, whatever the pieces it comes in."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from scheduler.frontend.parsing.choice import ParserChoice
from scheduler.frontend.parsing.parts import OutputParser, Parts

NEST = '{"a": {"b": [1, "}{", "\\"<"]}, "c": "é"}'


@dataclass
class Seen:
    """What a caller has put together."""

    text: str = ""
    reasoning: str = ""
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def take(self, parts: Parts) -> None:
        self.text += parts.text
        self.reasoning += parts.reasoning
        for part in parts.tool_calls:
            if part.index == len(self.names):
                assert part.name and part.call_id
                self.names.append(part.name)
                self.ids.append(part.call_id)
                self.arguments.append("")
            else:
                assert not part.name and not part.call_id
            self.arguments[part.index] += part.arguments

    @property
    def calls(self) -> list[tuple[str, str]]:
        return list(zip(self.names, self.arguments, strict=True))


def parse(pieces: list[str], **choice: str | bool) -> Seen:
    parser = ParserChoice(**choice).make()  # type: ignore[arg-type]
    assert parser is not None
    return feed(parser, pieces)


def feed(parser: OutputParser, pieces: list[str]) -> Seen:
    seen = Seen()
    for piece in pieces:
        seen.take(parser.feed(piece))
    seen.take(parser.flush())
    return seen


CASES = [
    ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {NEST}}}\n</tool_call>', "", [("f", NEST)]),
    (
        "hermes",
        'Let me see.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>\n{"name":"g","arguments":{"x":1}}\n</tool_call>',
        "Let me see.\n",
        [("f", "{}"), ("g", '{"x":1}')],
    ),
    ("hermes", '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [("f", '{"x": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", '{"x": 1}')]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call> done', "done", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1', "", [("f", '{"x": 1')]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"b":1}</tool_call> Hello '
        '<tool_call>{"name":"g","arguments":{}}</tool_call> bye',
        "Hello bye",
        [("f", '{"b":1}'), ("g", "{}")],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"b": 1</tool_call> Hello', "Hello", [("f", '{"b": 1')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"b": "</tool_call>"}} a', "a", [("f", '{"b": "</tool_call>"}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": 3</tool_call>a', "a", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": x</tool_call>a', ', "id": xa', [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": "3", }</tool_call>a', "a", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": "Hel', ', "id": "Hel', [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}} <tool', "<tool", [("f", "{}")]),
    (
        "hermes",
        '<tool_call>{"arguments": {"x": 1e400, "x": 1.10 } , "name": "f"}',
        "",
        [("f", '{"x": 1e400, "x": 1.10 }')],
    ),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"arguments" : {"x": "\\u00e9"}, "name": "f"}}</tool_call>',
        "",
        [("f", '{"x": "\\u00e9"}')],
    ),
    ("hermes", f'<tool_call>{{"arguments": [{"1" * 5000}], "name": "f"}}', "", [("f", f"[{'1' * 5000}]")]),
    ("hermes", '<tool_call>{"arguments": {}, "name": 1}', '<tool_call>{"arguments": {}, "name": 1}', []),
    ("hermes", '<tool_call>{"name": "f', '<tool_call>{"name": "f', []),
    ("hermes", "a <tool_call>no JSON</tool_call> b", "a <tool_call>no JSON</tool_call> b", []),
    ("hermes", '<tool_call>{"answer": 1}</tool_call>', '<tool_call>{"answer": 1}</tool_call>', []),
    ("hermes", "1 < 2 <tool <tool_cal", "1 < 2 <tool <tool_cal", []),
    ("llama3_json", f'{{"name": "f", "parameters": {NEST}}}', "", [("f", NEST)]),
    (
        "llama3_json",
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"y": "z"}}',
        "",
        [("f", "{}"), ("g", '{"y": "z"}')],
    ),
    ("llama3_json", '{"name": "f", "parameters": {"a": "b"} Hello there', "Hello there", [("f", '{"a": "b"}')]),
    ("llama3_json", '{"name": "f", "parameters": {}, so} it is', ", so} it is", [("f", "{}")]),
    (
        "llama3_json",
        '{"name": "f", "parameters": {}; {"name": "g", "parameters": {}<|python_tag|>{"name": "h"}',
        "",
        [("f", "{}"), ("g", "{}"), ("h", "{}")],
    ),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")]),
    ("llama3_json", '{"type": "function", "name": "f", "parameters": {"x": 1}}', "", [("f", '{"x": 1}')]),
    ("llama3_json", ' {"answer": {"name": 1}}', ' {"answer": {"name": 1}}', []),
    ("llama3_json", 'Use {"name": "f", "parameters": {}}', 'Use {"name": "f", "parameters": {}}', []),
    ("llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {NEST}}}, {{"name": "g", "arguments": {{}}}}]',
        "",
        [("f", NEST), ("g", "{}")],
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {}, {"name": "g", "arguments": {}] Hello',
        "Hello",
        [("f", "{}"), ("g", "{}")],
    ),
    ("mistral", "[TOOL_CALLS]f[ARGS]" + NEST, "", [("f", NEST)]),
    ("mistral", '[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}', "", [("f", '{"x": 1}'), ("g", "{}")]),
    ("mistral", "Hello [TOOL_CALLS][1, 2]", "Hello [TOOL_CALLS][1, 2]", []),
    ("mistral", "[TOOL_CALLS]name", "[TOOL_CALLS]name", []),
    ("mistral", "[TOOL", "[TOOL", []),
]


def cuts(text: str, dice: random.Random) -> list[str]:
    places = sorted(dice.sample(range(len(text) + 1), min(len(text), dice.randint(0, 8))))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize(("name", "text", "rest", "calls"), CASES)
def test_what_becomes_of_a_text_in_any_pieces(name: str, text: str, rest: str, calls: list[tuple[str, str]]) -> None:
    dice = random.Random(text)
    for pieces in ([text], list(text), *(cuts(text, dice) for _ in range(30))):
        seen = parse(pieces, tool_call=name)
        assert (seen.text, seen.calls) == (rest, calls), pieces
        assert len(set(seen.ids)) == len(seen.ids)


def test_arguments_come_as_they_are_written() -> None:
    parser = ParserChoice(tool_call="hermes").make()
    assert parser is not None
    given = [
        parser.feed(piece)
        for piece in ("<tool_call>{", '"name": "f", "arguments": ', '{"a": ', "1", "}", "}</tool_call>")
    ]
    written = ["".join(part.arguments for part in parts.tool_calls) for parts in given]
    assert written == ["", "", '{"a": ', "1", "}", ""]
    assert given[2].tool_calls[0].name == "f"


def test_text_waits_only_while_it_may_be_a_marker() -> None:
    parser = ParserChoice(tool_call="hermes").make()
    assert parser is not None
    assert [parser.feed(piece).text for piece in ("a", "b<", "tool_", "x", "<<")] == ["a", "b", "", "<tool_x", "<"]


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "rest"),
    [
        ("<think>\nhm, 1 < 2\n</think>\n\nYes.", False, "hm, 1 < 2\n", "Yes."),
        ("\n<think></think>Yes", False, "", "Yes"),
        ("hm</think>Yes", True, "hm", "Yes"),
        ("hm</thi", True, "hm</thi", ""),
        ("Yes <think>no</think>", False, "", "Yes <think>no</think>"),
        ("<thin", False, "", "<thin"),
        (" x", False, "", " x"),
        ("<think>hm", False, "hm", ""),
    ],
)
def test_reasoning_goes_before_the_answer(text: str, inside: bool, reasoning: str, rest: str) -> None:
    dice = random.Random(text)
    for pieces in ([text], list(text), *(cuts(text, dice) for _ in range(20))):
        seen = parse(pieces, reasoning="think", inside=inside)
        assert (seen.reasoning, seen.text) == (reasoning, rest), pieces


def test_calls_are_looked_for_behind_the_reasoning() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    text = f"<think>Shall I {call}?</think>Yes {call}"
    for pieces in ([text], list(text)):
        seen = parse(pieces, reasoning="think", tool_call="hermes")
        assert (seen.reasoning, seen.text, seen.calls) == (f"Shall I {call}?", "Yes ", [("f", "{}")])


def test_any_text_comes_out_whole_if_it_holds_no_call() -> None:
    """Nothing is lost and nothing doubled, whatever a model writes."""
    dice = random.Random(3)
    markers = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"]
    words = [*markers, "{", "}", '"', "name", ":", "[", "]", " ", "é", '{"name": "f", "arguments": {}}']
    words += [",", "<", '{"name": "f", "arguments": {', '"arguments": {}', '"name": "f"']
    for _ in range(3000):
        text = "".join(dice.choices(words, k=dice.randint(1, 12)))
        for name in ("hermes", "llama3_json", "mistral"):
            seen = parse(cuts(text, dice), tool_call=name)
            whole = parse([text], tool_call=name)
            assert (seen.text, seen.calls) == (whole.text, whole.calls), (name, text)
            if not seen.calls:
                assert seen.text == text, (name, text)
