"""Sequences, results and limits as bytes.

Rare values with many fields (a sequence's sampling, the limits) are JSON of the fields that differ from their defaults,
so a field that is added later needs no new format. Columns of tokens are packed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from scheduler.core.config import CoreConfig
from scheduler.core.drop_prefix import PrefixSelection
from scheduler.core.handover import Handover
from scheduler.core.result import EndReason, RowFlag, StepResult
from scheduler.core.sequence import Sampling, SequenceSpec
from scheduler.recording.errors import RecordingError
from scheduler.recording.packing import Packer, Unpacker


def to_json(value: Mapping[str, Any]) -> str:
    """Compact JSON, the same for equal values: sets are sorted, bytes are hexadecimal, dataclasses are their fields."""
    return json.dumps(value, default=_plain, separators=(",", ":"))


def changed_fields(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    values = ((field, getattr(instance, field.name)) for field in fields(instance))
    return {field.name: value for field, value in values if field.default is MISSING or value != field.default}


def pack_specs(packer: Packer, specs: tuple[SequenceSpec, ...]) -> None:
    """The sequences of one request. A prompt that equals the one before is not repeated."""
    packer.unsigned(len(specs))
    prompt: tuple[int, ...] | None = None
    for spec in specs:
        packer.unsigned(spec.prompt == prompt)
        if spec.prompt != prompt:
            prompt = spec.prompt
            packer.column(prompt)
        others = changed_fields(spec)
        del others["prompt"]
        packer.text(to_json(others))


def unpack_specs(unpacker: Unpacker) -> tuple[SequenceSpec, ...]:
    """As `pack_specs`."""
    specs: list[SequenceSpec] = []
    for _ in range(unpacker.unsigned()):
        prompt = specs[-1].prompt if unpacker.unsigned() else unpacker.column()
        others = _from_json(unpacker.text())
        if "stop_token_ids" in others:
            others["stop_token_ids"] = frozenset(others["stop_token_ids"])
        if "sampling" in others:
            others["sampling"] = Sampling(**others["sampling"])
        specs.append(SequenceSpec(prompt=prompt, **others))
    return tuple(specs)


def pack_handovers(packer: Packer, handovers: tuple[Handover, ...]) -> None:
    """Sequences that come from another core."""
    pack_specs(packer, tuple(handover.spec for handover in handovers))
    for handover in handovers:
        packer.column(handover.output)
        others = changed_fields(handover)
        del others["spec"]
        others.pop("output", None)
        packer.text(to_json(others))


def unpack_handovers(unpacker: Unpacker) -> tuple[Handover, ...]:
    """As `pack_handovers`."""
    specs = unpack_specs(unpacker)
    return tuple(Handover(spec=spec, output=unpacker.column(), **_from_json(unpacker.text())) for spec in specs)


def pack_result(packer: Packer, result: StepResult) -> None:
    """A worker's result. Of log-probabilities only the number is kept: the core looks at nothing else of them."""
    packer.unsigned(result.epoch)
    packer.unsigned(result.step_id)
    packer.unsigned(result.execute_ns)
    packer.column(result.num_sampled)
    packer.column(result.tokens)
    packer.column(result.flags)
    packer.unsigned(len(result.logprobs))
    packer.unsigned(len(result.top_tokens))
    packer.unsigned(len(result.top_logprobs))
    packer.column(result.num_scored)


def unpack_result(unpacker: Unpacker) -> StepResult:
    """As `pack_result`, with zeros for log-probabilities."""
    result = StepResult(
        epoch=unpacker.unsigned(),
        step_id=unpacker.unsigned(),
        execute_ns=unpacker.unsigned(),
        num_sampled=unpacker.column(),
        tokens=unpacker.column(),
        flags=tuple(map(RowFlag, unpacker.column())),
        logprobs=(0.0,) * unpacker.unsigned(),
        top_tokens=((),) * unpacker.unsigned(),
        top_logprobs=((),) * unpacker.unsigned(),
        num_scored=unpacker.column(),
    )
    return replace(result, scored_logprobs=(0.0,) * sum(result.num_scored))


def pack_reason(packer: Packer, reason: EndReason) -> None:
    """Why a sequence ends, by name, so that the order of the reasons may change."""
    packer.text(reason.value)


def unpack_reason(unpacker: Unpacker) -> EndReason:
    """As `pack_reason`."""
    return EndReason(unpacker.text())


def pack_selection(packer: Packer, selection: PrefixSelection) -> None:
    """Which prefixes are dropped."""
    packer.text(to_json(changed_fields(selection)))


def unpack_selection(unpacker: Unpacker) -> PrefixSelection:
    """As `pack_selection`."""
    return PrefixSelection(**_from_json(unpacker.text()))


def pack_time(packer: Packer, time_ns: int) -> None:
    """A time, which is usually just before that of the record."""
    packer.signed(time_ns - packer.now_ns)


def unpack_time(unpacker: Unpacker) -> int:
    """As `pack_time`."""
    return unpacker.now_ns + unpacker.signed()


def config_from_json(values: Mapping[str, Any]) -> CoreConfig:
    """The limits that `changed_fields` and `to_json` wrote. Raises RecordingError for limits that this core has not."""
    unknown = sorted(set(values) - {field.name for field in fields(CoreConfig)})
    if unknown:
        raise RecordingError(f"recorded with limits that this version does not know: {', '.join(unknown)}")
    return CoreConfig(**values)


def _plain(value: object) -> object:
    if is_dataclass(value):
        return changed_fields(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no form in a recording")


def _from_json(text: str) -> dict[str, Any]:
    """JSON with tuples for arrays, because what the core holds is immutable."""
    values: dict[str, Any] = json.loads(text)
    return {name: _frozen(value) for name, value in values.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {name: _frozen(inner) for name, inner in value.items()}
    return value
