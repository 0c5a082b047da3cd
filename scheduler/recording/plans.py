"""What `schedule` answered, packed against the plan before, and in readable lines.

A plan is kept whole, not as a digest, so that two that differ can be shown side by side. That is cheap: the steady
decode step repeats most columns of the step before, and a column that did not change costs one bit. Only the tokens of
an admission are kept as a digest, because the sequence and the results before it hold them.

Columns are found by their name, and those of a recording are named in its header: a plan that was recorded before a
column existed still equals one in which that column is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b
from operator import attrgetter
from struct import pack

from scheduler.core.plan import Admission, Idle, StepPlan, Waiting
from scheduler.recording.packing import Packer, Unpacker
from scheduler.recording.values import to_json

_WAITING, _IDLE, _PLAN, _RAISED = range(4)


def _column_names() -> tuple[str, ...]:
    """Every column of integers in a plan, also those one level down (`swap_out.sources`), in order."""
    names: list[str] = []
    for field in fields(StepPlan):
        if is_dataclass(field.default):
            names += [f"{field.name}.{inner.name}" for inner in fields(field.default)]
        elif field.name not in ("step_id", "admissions"):
            names.append(field.name)
    return tuple(names)


COLUMNS = _column_names()
_columns_of = attrgetter(*COLUMNS)


@dataclass(frozen=True, slots=True)
class PlanImage:
    """What is compared of a plan: all its columns that are not empty, by name, and its admissions as JSON."""

    step_id: int
    columns: dict[str, tuple[int, ...]]
    admissions: tuple[str, ...]

    @classmethod
    def of(cls, plan: StepPlan) -> PlanImage:
        """Of a plan that was just made."""
        columns = {name: tuple(column) for name, column in zip(COLUMNS, _columns_of(plan), strict=True) if column}
        return cls(plan.step_id, columns, tuple(map(_admission_json, plan.admissions)))

    def lines(self) -> list[str]:
        """One line per thing that the worker is told to do."""
        columns = dict(self.columns)
        lines = [f"plan {self.step_id}"]
        lines += [f"  release row {row}" for row in columns.pop("released_rows", ())]
        lines += [f"  admit {admission}" for admission in self.admissions]
        edits = (columns.pop(name, ()) for name in ("edit_rows", "edit_indices", "edit_blocks"))
        lines += [f"  table row {row}: [{index}] = block {block}" for row, index, block in zip(*edits, strict=True)]
        computed = (columns.pop(name, ()) for name in ("rows", "num_tokens", "max_samples"))
        for row, count, samples in zip(*computed, strict=True):
            lines.append(f"  compute row {row}: {count} token{'s' * (count > 1)}{', sample' * samples}")
        lines += [f"  {name} {','.join(map(str, column))}" for name, column in columns.items()]
        return lines


Outcome = PlanImage | str
"""A plan; or `Waiting`, `Idle`, or the exception that `schedule` raised."""


def outcome_of(answer: StepPlan | Waiting | Idle | Exception) -> Outcome:
    """What is compared of an answer of `schedule`."""
    if isinstance(answer, StepPlan):
        return PlanImage.of(answer)
    return describe_exception(answer) if isinstance(answer, Exception) else type(answer).__name__


def outcome_lines(outcome: Outcome) -> list[str]:
    """An outcome for people."""
    return outcome.lines() if isinstance(outcome, PlanImage) else [outcome]


def describe_exception(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"


class OutcomePacker:
    """Packs the outcomes of one segment, each plan against the one before."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[int], ...] = ((),) * len(COLUMNS)

    def pack(self, packer: Packer, answer: StepPlan | Waiting | Idle | Exception) -> None:
        """Appends one outcome."""
        if isinstance(answer, StepPlan):
            packer.unsigned(_PLAN)
            self._pack_plan(packer, answer)
        elif isinstance(answer, Exception):
            packer.unsigned(_RAISED)
            packer.text(describe_exception(answer))
        else:
            packer.unsigned(_WAITING if isinstance(answer, Waiting) else _IDLE)

    def _pack_plan(self, packer: Packer, plan: StepPlan) -> None:
        columns = _columns_of(plan)
        changed = [index for index, column in enumerate(columns) if column != self._last[index]]
        self._last = columns
        packer.unsigned(plan.step_id)
        packer.unsigned(sum(1 << index for index in changed))
        for index in changed:
            packer.column(columns[index])
        packer.unsigned(len(plan.admissions))
        for admission in plan.admissions:
            packer.text(_admission_json(admission))


class OutcomeUnpacker:
    """Reads what an `OutcomePacker` wrote. columns: the names that the segment's header gives."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns: dict[str, tuple[int, ...]] = dict.fromkeys(columns, ())

    def unpack(self, unpacker: Unpacker) -> Outcome:
        """The next outcome."""
        match unpacker.unsigned():
            case 0:
                return Waiting.__name__
            case 1:
                return Idle.__name__
            case 2:
                return self._unpack_plan(unpacker)
            case _:
                return unpacker.text()

    def _unpack_plan(self, unpacker: Unpacker) -> PlanImage:
        step_id, changed = unpacker.unsigned(), unpacker.unsigned()
        for index, name in enumerate(self._columns):
            if changed >> index & 1:
                self._columns[name] = unpacker.column()
        admissions = tuple(unpacker.text() for _ in range(unpacker.unsigned()))
        return PlanImage(step_id, {name: column for name, column in self._columns.items() if column}, admissions)


def _admission_json(admission: Admission) -> str:
    """All fields of an admission, its tokens as their number and digest."""
    values = {field: getattr(admission, field) for field in _ADMISSION_FIELDS}
    tokens = admission.token_ids
    digest = blake2b(pack(f"<{len(tokens)}Q", *tokens), digest_size=8).hexdigest()
    return to_json({**values, "token_ids": f"{len(tokens)} of digest {digest}"})


_ADMISSION_FIELDS = Admission._fields
