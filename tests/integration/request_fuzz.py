"""Random requests over every field that the protos have, and what any answer to one must be.

Values are made from the fields' types, so that a field that is added is fuzzed without a word here; the few that are
named are those whose usual values would otherwise never come up, or make a request that runs for ever.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.serving.v1 import generation_pb2
from tests.oracle.tokenizer import VOCAB_SIZE

_NUMBERS: Final = (0, 1, 2, 3, 20, 21, 63, 64, 65, 255, 319, 320, 2**31 - 1, 2**32 - 1, 2**63)
_DOUBLES: Final = (0.0, -0.0, 0.5, 1.0, 1.5, 2.0, 2.1, -0.1, 100.0, -100.0, 1e300, 5e-324, float("nan"), float("inf"))
_TEXTS: Final = ("", "a", "b", "é", "🦊", "ab", "\0", "\ufffd", "x" * 257, "x" * 300, "none", "think", "hermes", "{")
_TOOL: Final = '{"type": "function", "function": {"name": "f"}}'
_JSON: Final = ("", "{}", '{"a": 1}', "[]", "null", "{", _TOOL, '{"messages": 1}')
_USUAL: Final[dict[str, Callable[[random.Random], Any]]] = {
    "temperature": lambda dice: dice.choice([0.0, 0.7, 1.0, 2.0]),
    "top_k": lambda dice: dice.choice([-1, 0, 1, 5, 1000]),
    "top_p": lambda dice: dice.choice([0.1, 0.9, 1.0]),
    "min_p": lambda dice: dice.choice([0.0, 0.1, 1.0]),
    "seed": lambda dice: dice.getrandbits(64),
    "max_tokens": lambda dice: dice.randint(1, 12),
    "stop": lambda dice: ["".join(dice.choices("abcw!é🦊", k=dice.randint(1, 3))) for _ in range(dice.randint(1, 16))],
    "stop_token_ids": lambda dice: dice.choices(range(VOCAB_SIZE), k=dice.randint(1, 5)),
    "logprobs": lambda dice: dice.randint(0, 20),
    "n": lambda dice: dice.choice([1, 1, 2, 5]),
    "min_tokens": lambda dice: dice.randint(0, 5),
    "presence_penalty": lambda dice: dice.choice([-2.0, 0.5]),
    "frequency_penalty": lambda dice: dice.choice([0.1, 2.0]),
    "repetition_penalty": lambda dice: dice.choice([0.5, 1.0, 1.5]),
    "allowed_token_ids": lambda dice: dice.choices(range(VOCAB_SIZE), k=dice.randint(1, 40)),
    "bad_words": lambda dice: dice.choices(["a", "é", "ab"], k=dice.randint(1, 3)),
    "prompt_logprobs": lambda dice: dice.randint(0, 20),
    "json_schema": lambda dice: dice.choice(["{}", '{"type": "integer"}', '{"enum": ["a", "b"]}']),
    "json_object": lambda dice: True,
    "regex": lambda dice: dice.choice(["[ab]+", "(a|é|🦊){1,9}", "a"]),
    "texts": lambda dice: dice.choice([["a"], ["ab", "🦊"]]),
    "grammar": lambda dice: dice.choice(['start: "a" start | "b"', 'root ::= "a" | "b" root']),
    "tool_call_parser": lambda dice: dice.choice(["hermes", "llama3_json", "mistral", "none"]),
    "reasoning_parser": lambda dice: dice.choice(["think", "none"]),
    "stream_interval": lambda dice: dice.choice([1, 2, 5, 2048]),
    "role": lambda dice: dice.choice(["system", "user", "assistant", "tool"]),
    "content": lambda dice: "".join(dice.choices("ab é🦊{", k=dice.randint(0, 6))),
    "ids": lambda dice: dice.choices(range(VOCAB_SIZE), k=dice.randint(1, 20)),
    "tools": lambda dice: [_TOOL] * dice.randint(0, 2),
    "template_kwargs": lambda dice: dice.choice(["", '{"x": 1}']),
    "arguments": lambda dice: dice.choice(["", "{}"]),
    "model": lambda dice: "",
    "request_id": lambda dice: "",
    "add_generation_prompt": lambda dice: dice.random() < 0.5,
    "continue_final_message": lambda dice: False,
}


@dataclass(frozen=True, slots=True)
class _Habit:
    """How often a field is set at all, and how often to any value of its type rather than to a usual one."""

    set: float
    wild: float


def random_request(dice: random.Random) -> generation_pb2.GenerateRequest:
    """Some valid, some with one thing wrong, some with many."""
    request = generation_pb2.GenerateRequest()
    _fill(request, dice, _Habit(dice.choice([0.03, 0.1, 0.3]), dice.choice([0.0, 0.0, 0.12])))
    if request.WhichOneof("prompt") is None and dice.random() < 0.95:
        request.token_ids.ids.extend(_USUAL["ids"](dice))
    if not request.sampling_params.HasField("max_tokens"):
        request.sampling_params.max_tokens = _USUAL["max_tokens"](dice)
    if dice.random() < 0.02:
        request.MergeFromString(b"\x98\x3f\x01")  # field 1011, which nobody knows
    return request


def _fill(message: Any, dice: random.Random, habit: _Habit) -> None:
    kinds = [oneof for oneof in message.DESCRIPTOR.oneofs if len(oneof.fields) > 1]
    skipped = {field.name for oneof in kinds for field in oneof.fields}
    chosen = {
        dice.choice(oneof.fields).name
        for oneof in kinds
        if dice.random() < (0.9 if oneof.name == "prompt" else habit.set)
    }
    for field in message.DESCRIPTOR.fields:
        if field.name in chosen or (field.name not in skipped and dice.random() < habit.set) or _is_part(field):
            _set(message, field, dice, habit)


def _is_part(field: FieldDescriptor) -> bool:
    """Without these a message of the protos says nothing."""
    return field.name in ("sampling_params", "messages", "role", "content", "ids")


def _set(message: Any, field: FieldDescriptor, dice: random.Random, habit: _Habit) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entries = getattr(message, field.name)
        for _ in range(dice.randint(1, 3)):
            usual = dice.random() >= habit.wild
            entries[dice.choice(_NUMBERS[:9] if usual else _NUMBERS[:-1])] = 1.5 if usual else dice.choice(_DOUBLES)
    elif field.message_type is not None and field.is_repeated:
        for _ in range(dice.randint(0 if dice.random() < habit.wild else 1, 3)):
            _fill(getattr(message, field.name).add(), dice, habit)
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
        _fill(getattr(message, field.name), dice, habit)
    elif field.name in _USUAL and dice.random() >= habit.wild:
        _assign(message, field, _USUAL[field.name](dice))
    elif field.is_repeated:
        _assign(message, field, [_any(field, dice) for _ in range(dice.choice([1, 2, 17, 40]))])
    else:
        _assign(message, field, _any(field, dice))


def _assign(message: Any, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        getattr(message, field.name).extend(value)
    else:
        setattr(message, field.name, value)


def _any(field: FieldDescriptor, dice: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return dice.choice(_DOUBLES)
        case FieldDescriptor.CPPTYPE_BOOL:
            return dice.random() < 0.5
        case FieldDescriptor.CPPTYPE_STRING:
            return dice.choice(_JSON if field.name in ("tools", "template_kwargs", "arguments") else _TEXTS)
        case FieldDescriptor.CPPTYPE_INT32:
            return dice.choice([-(2**31), -2, -1, *(number for number in _NUMBERS if number < 2**31)])
        case FieldDescriptor.CPPTYPE_UINT32:
            return dice.choice([number for number in _NUMBERS if number < 2**32])
        case FieldDescriptor.CPPTYPE_ENUM:
            return dice.choice([0, 1, 2, 99])
        case _:
            return dice.choice(_NUMBERS)


def check_stream(request: generation_pb2.GenerateRequest, responses: list[generation_pb2.GenerateResponse]) -> None:
    """A whole and consistent answer."""
    sampling = request.sampling_params
    num_sequences = sampling.n if sampling.HasField("n") else 1
    texts, counts, ended = [""] * num_sequences, [0] * num_sequences, [False] * num_sequences
    assert responses
    for place, response in enumerate(responses):
        assert response.request_id == (request.request_id or responses[0].request_id)
        assert response.HasField("usage") == (place == len(responses) - 1)
        assert bool(response.prompt_token_ids) == (sampling.echo and place == 0)
        for delta in response.deltas:
            assert not ended[delta.index], "nothing comes after the end"
            ended[delta.index] = delta.finish_reason != generation_pb2.FINISH_REASON_UNSPECIFIED
            texts[delta.index] += delta.text
            counts[delta.index] += len(delta.token_ids)
            if sampling.HasField("logprobs"):
                assert [entry.token_id for entry in delta.logprobs] == list(delta.token_ids)
                assert all(len(entry.top) == sampling.logprobs for entry in delta.logprobs)
            else:
                assert not delta.logprobs
    assert all(ended)
    assert responses[-1].usage.completion_tokens == sum(counts)
    assert all(1 <= count <= sampling.max_tokens for count in counts)
    if sampling.stop and not sampling.include_stop_in_output and not sampling.echo and not sampling.min_tokens:
        assert not any(string in text for string in sampling.stop for text in texts)


_OTHER_ENDS: Final = {
    grpc.StatusCode.NOT_FOUND: "model",
    grpc.StatusCode.ALREADY_EXISTS: "request_id",
    grpc.StatusCode.FAILED_PRECONDITION: "structured_output",  # nothing is left to go on with
    grpc.StatusCode.RESOURCE_EXHAUSTED: "structured_output",  # it takes too long
}


def check_status(request: generation_pb2.GenerateRequest, error: grpc.aio.AioRpcError) -> None:
    """A refusal that names fields which the request has."""
    detail = str(error.details())
    if error.code() in _OTHER_ENDS:
        assert _OTHER_ENDS[error.code()] in detail
        return
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, f"{error.code()}: {detail}"
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    bad = error_details_pb2.BadRequest()
    assert any(box.Unpack(bad) for box in status.details), detail
    assert bad.field_violations
    for violation in bad.field_violations:
        assert violation.description
        assert _exists(request.DESCRIPTOR, violation.field), violation.field


def _exists(message: Descriptor, path: str) -> bool:
    """Whether a path such as chat.messages[2].role leads to a field, or to one that no proto has, by its number."""
    for name in re.sub(r"\[\d+\]", "", path).split("."):
        if name.startswith("#"):
            return True
        if name in message.oneofs_by_name:
            return True
        if name not in message.fields_by_name:
            return False
        message = message.fields_by_name[name].message_type or message
    return True
