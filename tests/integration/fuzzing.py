"""Messages that nobody would send, and a way to send them: bytes at random, messages of random fields with values at
the edges, and serialised ones with bits turned over or the end cut off. The same dice give the same messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_INTS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "x", "hello world", "\0", "é" * 40, "𝕏\u200d\uffff", "x" * 5000, "{{ 1 / 0 }}", "<|im_end|>", "../../etc")
_MAX_DEPTH = 4


def random_message(kind: type[Message], dice: random.Random, depth: int = 0) -> Message:
    """A message of this type with about half of its fields set."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if dice.random() < 0.5:
            _fill(message, field, dice, depth)
    return message


def _fill(message: Message, field: FieldDescriptor, dice: random.Random, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        for _ in range(dice.randint(0, 3)):
            getattr(message, field.name)[_scalar(key, dice)] = _scalar(value, dice)
    elif field.message_type is not None:
        if depth == _MAX_DEPTH:
            return
        kind = GetMessageClass(field.message_type)
        if field.is_repeated:
            for _ in range(dice.randint(0, 3)):
                getattr(message, field.name).append(random_message(kind, dice, depth + 1))
        else:
            getattr(message, field.name).CopyFrom(random_message(kind, dice, depth + 1))
    elif field.is_repeated:
        count = dice.choice((0, 1, 2, 3, 3, 300))
        getattr(message, field.name).extend(_scalar(field, dice) for _ in range(count))
    else:
        setattr(message, field.name, _scalar(field, dice))


def _scalar(field: FieldDescriptor, dice: random.Random) -> Any:
    kind = field.cpp_type
    if kind in _INTS:
        low, high = _INTS[kind]
        return dice.choice((low, high, max(low, -1), 0, 1, 2, dice.randint(0, 300), dice.randint(low, high)))
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return dice.choice((*_FLOATS, dice.random()))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return dice.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return dice.choice((0, 1, 2, 3, 77, -1))
    return dice.randbytes(dice.randint(0, 40)) if field.type == FieldDescriptor.TYPE_BYTES else dice.choice(_TEXTS)


def fuzzed(kind: type[Message], dice: random.Random) -> bytes:
    """One message as bytes, of any of the three ways."""
    way = dice.random()
    if way < 0.2:
        return dice.randbytes(dice.randint(0, 200))
    data = bytearray(random_message(kind, dice).SerializeToString())
    if way < 0.5 and data:
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        if dice.random() < 0.3:
            del data[dice.randrange(len(data)) :]
    return bytes(data)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service on a channel."""

    channel: grpc.Channel
    descriptor: MethodDescriptor

    def send(self, messages: list[bytes], timeout: float) -> grpc.StatusCode:
        """Calls it, with one message if it takes one; reads at most one answer. The status of the call, OK too where
        it was left before its end."""
        name = f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"
        try:
            if self.descriptor.client_streaming:
                self._read_one(self.channel.stream_stream(name)(iter(messages), timeout=timeout))
            elif self.descriptor.server_streaming:
                self._read_one(self.channel.unary_stream(name)(messages[0], timeout=timeout))
            else:
                self.channel.unary_unary(name)(messages[0], timeout=timeout)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    @staticmethod
    def _read_one(call: Any) -> None:
        try:
            next(call, None)
        finally:
            call.cancel()


def methods(channel: grpc.Channel, services: list[Any]) -> Iterator[Method]:
    """All methods of these service descriptors."""
    for service in services:
        for descriptor in service.methods:
            yield Method(channel, descriptor)
