"""Sampling defaults of a model, from its generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from scheduler.frontend.errors import UnsupportedModelError

_LOG = structlog.get_logger(__name__)
# Settings that change what transformers would sample and that this version does not apply, with their neutral values.
_NOT_APPLIED: Final[dict[str, tuple[Any, ...]]] = {
    "typical_p": (None, 1, 1.0),
    "bad_words_ids": (None,),
    "suppress_tokens": (None, []),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What a request gets for sampling fields that it does not set. Ranges as in SamplingParams; top_k 0 is off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, valid, limit in (
            ("temperature", 0 <= self.temperature <= 2, "[0, 2]"),
            ("top_k", self.top_k >= 0, ">= 0"),
            ("top_p", 0 < self.top_p <= 1, "(0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "[0, 1]"),
            ("repetition_penalty", 0 < self.repetition_penalty <= 2, "(0, 2]"),
        ):
            if not valid:
                raise UnsupportedModelError(f"generation_config: {name} is {getattr(self, name)}, must be {limit}")


def sampling_defaults(generation_config: Mapping[str, Any]) -> SamplingDefaults:
    """Reads the defaults; `do_sample: false` means greedy, as it does in transformers."""
    for name, neutral in _NOT_APPLIED.items():
        if generation_config.get(name) not in neutral:
            _LOG.warning("generation_config setting is not applied", setting=name, value=generation_config[name])

    def setting(name: str, default: float) -> float:
        value = generation_config.get(name)
        return default if value is None else float(value)

    repetition_penalty = setting("repetition_penalty", 1.0)
    if generation_config.get("do_sample") is False:
        return SamplingDefaults(temperature=0.0, repetition_penalty=repetition_penalty)
    return SamplingDefaults(
        temperature=setting("temperature", 1.0),
        top_k=max(int(setting("top_k", 0)), 0),
        top_p=setting("top_p", 1.0),
        min_p=setting("min_p", 0.0),
        repetition_penalty=repetition_penalty,
    )
