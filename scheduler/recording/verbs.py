"""The core's verbs, each with its arguments: the one table that recorder, replay and simulation share.

What is recorded of `schedule`, which takes nothing, is its answer; of the others, what they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scheduler.core.handover import Handover
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
_SPECS = Kind(values.pack_specs, values.unpack_specs)
_HANDOVERS = Kind(values.pack_handovers, values.unpack_handovers)
_SELECTION = Kind(values.pack_selection, values.unpack_selection)
_REASON = Kind(values.pack_reason, values.unpack_reason)
_RESULT = Kind(values.pack_result, values.unpack_result)


@dataclass(frozen=True, slots=True)
class Verb:
    """A method of the core. number: in recordings, so it never changes.

    arguments: kinds, in this order. keywords: names of the last of them, if those are passed by name.
    """

    number: int
    name: str
    arguments: tuple[Kind, ...]
    keywords: tuple[str, ...] = ()

    def call(self, core: Scheduler, arguments: tuple[Any, ...]) -> Any:
        """Calls the core and returns its answer."""
        first_named = len(arguments) - len(self.keywords)
        named = dict(zip(self.keywords, arguments[first_named:], strict=True))
        return getattr(core, self.name)(*arguments[:first_named], **named)


SCHEDULE = Verb(0, "schedule", ())
ADD_GROUP = Verb(1, "add_group", (_SPECS,))
FINISH = Verb(2, "finish", (_COUNT, _REASON))
FINISH_ALL = Verb(3, "finish_all", (_REASON,))
EXPIRE = Verb(4, "expire", (_TIME,))
UPDATE = Verb(5, "update", (_RESULT,))
REQUEUE_ALL = Verb(6, "requeue_all", (_COUNT, _COUNT))
SET_RATES = Verb(7, "set_rates", (_COUNT, _COUNT), ("prefill_tokens_per_s", "copy_bytes_per_s"))
DROP_PREFIX = Verb(8, "drop_prefix", (_SELECTION,))
FINISH_AT = Verb(9, "finish", (_COUNT, _REASON, _COUNT))  # with the number of output tokens that are kept
WITHDRAW = Verb(10, "withdraw", (_COUNT,))
ADOPT = Verb(11, "adopt", (_HANDOVERS,))

VERBS = {
    verb.number: verb
    for verb in (
        SCHEDULE,
        ADD_GROUP,
        FINISH,
        FINISH_ALL,
        EXPIRE,
        UPDATE,
        REQUEUE_ALL,
        SET_RATES,
        DROP_PREFIX,
        FINISH_AT,
        WITHDRAW,
        ADOPT,
    )
}


def specs_in(arguments: tuple[Any, ...]) -> tuple[SequenceSpec, ...]:
    """The sequences that the arguments of ADD_GROUP or ADOPT name."""
    return tuple(item.spec if isinstance(item, Handover) else item for item in arguments[0])


def ends_in(answer: Any) -> tuple[End, ...]:
    """The ends that the answer of any verb reports."""
    match answer:
        case End():
            return (answer,)
        case StepOutput():
            return answer.ends
        case tuple():
            return tuple(end for end in answer if isinstance(end, End))
        case _:
            return ()
