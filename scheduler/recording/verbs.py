"""The core's verbs, each with its arguments: the one table that recorder, replay and simulation share.

What is recorded of `schedule`, which takes nothing, is its answer; of the others, what they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scheduler.core.result import End, StepOutput
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.recording import values
from scheduler.recording.packing import Packer, Unpacker


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of argument is packed and read."""

    pack: Callable[[Packer, Any], None]
    unpack: Callable[[Unpacker], Any]


_COUNT = Kind(Packer.unsigned, Unpacker.unsigned)
_TIME = Kind(values.pack_time, values.unpack_time)
_SPEC = Kind(values.pack_spec, values.unpack_spec)
_REASON = Kind(values.pack_reason, values.unpack_reason)
_RESULT = Kind(values.pack_result, values.unpack_result)


@dataclass(frozen=True, slots=True)
class Verb:
    """A method of the core. number: in recordings, so it never changes. Arguments are passed in this order."""

    number: int
    name: str
    arguments: tuple[Kind, ...]

    def call(self, core: Scheduler, arguments: tuple[Any, ...]) -> Any:
        """Calls the core and returns its answer."""
        return getattr(core, self.name)(*arguments)


SCHEDULE = Verb(0, "schedule", ())
ADD = Verb(1, "add", (_SPEC,))
FINISH = Verb(2, "finish", (_COUNT, _REASON))
FINISH_ALL = Verb(3, "finish_all", (_REASON,))
EXPIRE = Verb(4, "expire", (_TIME,))
UPDATE = Verb(5, "update", (_RESULT,))
REQUEUE_ALL = Verb(6, "requeue_all", (_COUNT,))

VERBS = {verb.number: verb for verb in (SCHEDULE, ADD, FINISH, FINISH_ALL, EXPIRE, UPDATE, REQUEUE_ALL)}


def specs_in(arguments: tuple[Any, ...]) -> tuple[SequenceSpec, ...]:
    """The sequences that the arguments of ADD name."""
    return arguments


def ends_in(answer: Any) -> tuple[End, ...]:
    """The ends that the answer of any verb reports."""
    match answer:
        case End():
            return (answer,)
        case StepOutput():
            return answer.ends
        case tuple():
            return answer
        case _:
            return ()
