"""Fifty JSON schemas: nested, with enums, bounds, patterns and references. Lengths are bounded, so that a model that
draws at random comes to an end."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "maxLength": 8}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 99}


def record(*optional: str, **properties: Any) -> Schema:
    """An object of these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def array(items: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def pattern(regex: str) -> Schema:
    return {"type": "string", "pattern": regex}


def nested(depth: int) -> Schema:
    return record(value=COUNT, inner=nested(depth - 1)) if depth else record(value=COUNT)


_TREE: Schema = {
    "$ref": "#/$defs/node",
    "$defs": {"node": record("left", label={"enum": ["x", "y"]}, left={"anyOf": [{"$ref": "#/$defs/leaf"}, COUNT]})}
    | {"leaf": record(end={"const": True})},
}
_ADDRESS: Schema = record(street=TEXT, zip=pattern("^[0-9]{5}$"))

SCHEMAS: list[Schema] = [
    {"type": "null"},
    {"type": "boolean"},
    COUNT,
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "minimum": 1000, "maximum": 1200},
    {"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 9},
    {"type": "integer", "minimum": -250, "maximum": -17},
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    {"type": "number", "minimum": -2.5, "maximum": 2.5, "multipleOf": 0.125},
    TEXT,
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 40},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, 2.5, "three", None, True, [4], {"five": 5}]},
    {"const": {"a": [1, 2, {"b": "c"}]}},
    pattern("^[A-Z]{2}-[0-9]{4}$"),
    pattern("^(foo|bar)+$") | {"maxLength": 12},
    pattern(r"^\d{3}\.\d{2}$"),
    pattern("^[a-f0-9]{8}(-[a-f0-9]{4}){2}$"),
    pattern("^(yes|no), (sir|madam)$"),
    {"type": "string", "format": "date"},
    pattern("^[0-2][0-9]:[0-5][0-9](Z|[+-]0[0-9]:00)$"),
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    array(COUNT, 0, 3),
    array(COUNT, 4, 4),
    array({"enum": ["a", "b"]}, 2, 6),
    array(array({"type": "boolean"}, 1, 2), 1, 3),
    array(pattern("^[xyz]{2}$"), 1, 4),
    {"type": "array", "prefixItems": [COUNT, TEXT, {"type": "boolean"}], "items": False, "minItems": 3},
    array({"anyOf": [COUNT, {"type": "null"}]}, 3, 5),
    record(name=TEXT, age=COUNT),
    record("age", name=TEXT, age=COUNT),
    record("a", "b", "c", a=COUNT, b=COUNT, c=COUNT),
    record(),
    record(kind={"const": "point"}, at=record(x={"type": "integer", "minimum": -9, "maximum": 9}, y=COUNT)),
    record(tags=array(TEXT, 1, 3), open={"type": "boolean"}),
    record(level={"enum": [1, 2, 3]}, unit={"enum": ["kg", "g"]}),
    record(id=pattern("^id_[a-z]{4}$"), next={"anyOf": [{"type": "null"}, COUNT]}),
    nested(2),
    nested(6),
    record(matrix=array(array(COUNT, 3, 3), 3, 3)),
    record(**{f"field_{i}": {"type": "boolean"} for i in range(12)}),
    record(**{'with "quotes"': COUNT, "ümläut": COUNT, "back\\slash": COUNT}),
    {"anyOf": [record(a=COUNT), record(b=TEXT)]},
    {"oneOf": [record(type={"const": "a"}, a=COUNT), record(type={"const": "b"}, b=TEXT)]},
    {"$ref": "#/$defs/count", "$defs": {"count": COUNT}},
    record(home={"$ref": "#/$defs/address"}, work={"$ref": "#/$defs/address"}) | {"$defs": {"address": _ADDRESS}},
    _TREE,
    {
        "type": "object",
        "properties": {"a": COUNT},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    },
]
