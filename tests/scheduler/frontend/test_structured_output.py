"""What structured output may be asked for: forms that are taken, and those that are refused by name."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from scheduler.frontend.request import SamplingInput
from scheduler.frontend.structured_output import CheckedGrammar, GrammarChecker

CHECKER = GrammarChecker([b"<|eos|>", b"<|tool|>"])


def check(*, can_end: bool = True, **sampling: Any) -> CheckedGrammar:
    return asyncio.run(CHECKER.check(SamplingInput(**sampling), can_end=can_end))


def nested(depth: int) -> str:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return json.dumps(schema)


@pytest.mark.parametrize(
    "sampling",
    [
        {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}}'},
        {"json_schema": '{"$ref": "#/$defs/a", "$defs": {"a": {"enum": [1, null, "x"]}}}'},
        {"json_schema": " true\n"},
        {"json_object": True},
        {"regex": "[a-z]{3}"},
        {"regex": ""},
        {"choice": ("yes", "no", 'é\n"quoted"\\')},
        {"grammar": 'start: "a" B\nB: /[0-9]+/'},
        {"grammar": 'root ::= "a" digits\ndigits ::= [0-9]+'},
        {"grammar": 'start: "a" <|tool|>'},
    ],
)
def test_forms_that_are_taken(sampling: dict[str, Any]) -> None:
    checked = check(**sampling)
    assert checked.grammar and not checked.violations


def test_nothing_asked_for_is_no_grammar() -> None:
    assert check() == CheckedGrammar()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"json_object": False}, "is false, must be true or left out"),
    ({"choice": ()}, "is empty, must have at least one text"),
    ({"choice": ("a", "")}, "has an empty text at index 1, must have none"),
    ({"choice": ("x" * 40000, "y" * 40000)}, "has 80000 bytes, must have at most 65536"),
    ({"regex": "x" * 65537}, "has 65537 bytes, must have at most 65536"),
    ({"regex": "a", "ignore_eos": True}, "ends with EOS, which sampling_params.ignore_eos forbids: give one of them"),
    ({"regex": "(a"}, "is refused: invalid regex: unclosed group"),
    ({"regex": "error: \n("}, "is refused: invalid regex: unclosed group"),
    ({"regex": r"(a)\1"}, "is refused: invalid regex: backreferences are not supported"),
    ({"regex": "(?=a)b"}, "is refused: "),
    ({"json_schema": ""}, "is empty, must be a JSON schema"),
    ({"json_schema": "nope"}, "is refused: the schema must be a JSON object or true"),
    ({"json_schema": "[1]"}, "is refused: the schema must be a JSON object or true"),
    ({"json_schema": "false"}, "is refused: the schema must be a JSON object or true"),
    ({"json_schema": '{"type": "string", "pattern": "("}'}, "is refused: invalid regex: unclosed group"),
    ({"json_schema": '{"type": "object"'}, "is refused: "),
    ({"json_schema": '{"type": "text"}'}, "is refused: Invalid type: text"),
    ({"json_schema": '{"$ref": "#/$defs/none"}'}, "is refused: "),
    ({"json_schema": '{"$ref": "http://127.0.0.1:9/schema.json"}'}, "is refused: "),
    ({"json_schema": '{"$ref": "file:///etc/passwd"}'}, "is refused: "),
    ({"json_schema": '{"not": {"type": "string"}}'}, "is refused: "),
    ({"json_schema": '{"type": "string", "minLength": 5, "maxLength": 2}'}, "is refused: "),
    ({"json_schema": '{"$ref": "#"}'}, "matches no text"),
    ({"json_schema": nested(200)}, "is refused: "),
    ({"grammar": ""}, "is empty, must have at least one rule"),
    ({"grammar": "start: A\nA: /(/"}, "is refused: at 2(4): invalid regex: unclosed group"),
    ({"grammar": "start: foo"}, 'is refused: at 1(8): unknown name: "foo"'),
    ({"grammar": "start: start"}, "matches no text"),
    ({"grammar": "root ::= ((("}, "is refused: "),
    ({"grammar": f'root ::= {"(" * 5000}"a"{")" * 5000}'}, "is refused: "),
    ({"grammar": f'start: {"(" * 5000}"a"{")" * 5000}'}, "is refused: "),
    ({"grammar": "start: <|no_such_token|>"}, "is refused: "),
]


@pytest.mark.parametrize(("sampling", "description"), REFUSED)
def test_forms_that_are_refused(sampling: dict[str, Any], description: str) -> None:
    checked = check(**sampling)
    (violation,) = checked.violations
    assert violation.field == f"sampling_params.{next(iter(sampling))}"
    assert violation.description.startswith(description)
    assert "\n" not in violation.description
    assert checked.grammar == ""


def test_a_model_without_an_end_cannot_end_a_form() -> None:
    (violation,) = check(regex="a", can_end=False).violations
    assert violation.description == "needs a model with an EOS token, and this one has none: leave it out"


EXPLOSIVE: list[dict[str, Any]] = [
    {"regex": "((a{0,100}){0,100}){0,100}b"},
    {"regex": "(.*a.{30}){20}"},
    {"regex": r"(\p{L}{0,500}\w{1,500}){0,50}"},
    {"regex": "|".join(f"w{i}x{i * 7}" for i in range(4000))},
    {"grammar": 'start: e\ne: e e | e e e | "a" | ""'},
    {"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1} r{i + 1}" for i in range(25)) + '\nr25: "a"'},
    {"json_schema": json.dumps({"enum": [f"v{i}" for i in range(5000)]})},
    {
        "json_schema": json.dumps(
            {"properties": {f"p{i}": {"type": "string", "pattern": "^(a|b){0,200}x{5,900}$"} for i in range(300)}}
        )
    },
]


def test_explosive_grammars_are_bounded_and_leave_the_event_loop_alone() -> None:
    """While all of them are checked at once, the event loop's turns stay short: what takes long is not done on it."""

    async def run() -> tuple[list[CheckedGrammar], int]:
        begin, turns = time.monotonic(), 0
        checks = asyncio.gather(*(CHECKER.check(SamplingInput(**sampling), can_end=True) for sampling in EXPLOSIVE))
        while not checks.done() and time.monotonic() - begin < 100:
            await asyncio.sleep(0)
            turns += 1
        return await checks, turns

    checked, turns = asyncio.run(run())
    assert turns > 100
    for one in checked:
        assert bool(one.grammar) != bool(one.violations)
