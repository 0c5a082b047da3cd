"""The rules that a request must keep, and the values it gets for what it leaves open.

All violations of a request are found and reported together, each with the field's path, its value and the limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduler.core.sequence import Sampling
from scheduler.frontend.errors import InvalidRequestError, Violation
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.parsing.choice import check_parsers
from scheduler.frontend.prompts import EncodedPrompt
from scheduler.frontend.request import GenerateInput, SamplingInput
from scheduler.frontend.sampling_defaults import SamplingDefaults

_MAX_NAME_BYTES: Final = 256
_MAX_LOGPROBS: Final = 20
_MAX_N: Final = 64
_MAX_STOPS: Final = 16
_MAX_STOP_CHARACTERS: Final = 256
# Fields that no code reads yet, with the value at which they change nothing.
_NOT_SUPPORTED: Final[dict[str, Any]] = {
    "min_tokens": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "allowed_token_ids": (),
    "bad_words": (),
    "prompt_logprobs": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedRequest:
    """What the n SequenceSpecs are made of; seed: None if the server is to pick one. open_ended: as in SequenceSpec."""

    prompt: tuple[int, ...]
    max_tokens: int
    open_ended: bool
    stop_token_ids: frozenset[int]
    sampling: Sampling
    seed: int | None
    n: int
    tenant: str
    priority: int
    cache_salt: str
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    echo: bool
    stop: tuple[str, ...]
    include_stop_in_output: bool
    min_tokens: int


def validate(
    request: GenerateInput,
    prompt: EncodedPrompt,
    *,
    model: ModelInfo,
    eos_token_ids: tuple[int, ...],
    defaults: SamplingDefaults,
    has_text: bool = True,
) -> ValidatedRequest:
    """Raises InvalidRequestError with all violations. The model's name is not looked at.

    has_text: whether the model has a tokenizer.
    """
    violations = (
        *_check_fields(request),
        *_check_sampling(request.sampling, model),
        *_check_parallel(request.sampling, defaults),
        *_check_text(request.sampling, has_text=has_text),
        *check_parsers(request),
        *check_prompt(prompt, request.sampling.max_tokens, model),
    )
    if violations:
        raise InvalidRequestError(violations)
    sampling = request.sampling
    eos = () if sampling.ignore_eos else eos_token_ids
    return ValidatedRequest(
        prompt=tuple(prompt.token_ids),
        max_tokens=model.max_model_len - len(prompt.token_ids) if sampling.max_tokens is None else sampling.max_tokens,
        open_ended=sampling.max_tokens is None,
        stop_token_ids=frozenset((*eos, *sampling.stop_token_ids)),
        sampling=_resolve(sampling, defaults, model),
        seed=sampling.seed,
        n=1 if sampling.n is None else sampling.n,
        tenant=request.tenant,
        priority=request.priority,
        cache_salt=request.cache_salt,
        skip_special_tokens=sampling.skip_special_tokens is not False,
        spaces_between_special_tokens=sampling.spaces_between_special_tokens is True,
        echo=sampling.echo is True,
        stop=sampling.stop,
        include_stop_in_output=sampling.include_stop_in_output is True,
        min_tokens=sampling.min_tokens or 0,
    )


def _resolve(sampling: SamplingInput, defaults: SamplingDefaults, model: ModelInfo) -> Sampling:
    top_k = defaults.top_k if sampling.top_k is None else sampling.top_k
    return Sampling(
        temperature=defaults.temperature if sampling.temperature is None else sampling.temperature,
        top_k=top_k if 0 < top_k < model.logits_width else 0,
        top_p=defaults.top_p if sampling.top_p is None else sampling.top_p,
        min_p=defaults.min_p if sampling.min_p is None else sampling.min_p,
        num_logprobs=sampling.logprobs,
    )


def _check_fields(request: GenerateInput) -> Iterator[Violation]:
    for path in request.unknown_fields:
        yield Violation(field=path, description="is not known to this version of the server")
    for name in ("request_id", "tenant", "cache_salt"):
        size = len(getattr(request, name).encode())
        if size > _MAX_NAME_BYTES:
            yield Violation(field=name, description=f"has {size} bytes, must have at most {_MAX_NAME_BYTES}")


def _check_sampling(sampling: SamplingInput, model: ModelInfo) -> Iterator[Violation]:
    # Written so that NaN and infinities fail every rule.
    rules: tuple[tuple[str, Any, bool, str], ...] = (
        ("temperature", t := sampling.temperature, t is None or 0 <= t <= 2, "in [0, 2]"),
        ("top_k", k := sampling.top_k, k is None or k >= -1, "at least 1, or 0 or -1 for off"),
        ("top_p", p := sampling.top_p, p is None or 0 < p <= 1, "in (0, 1]"),
        ("min_p", m := sampling.min_p, m is None or 0 <= m <= 1, "in [0, 1]"),
        ("max_tokens", x := sampling.max_tokens, x is None or x >= 1, "at least 1"),
        ("logprobs", c := sampling.logprobs, c is None or 0 <= c <= _MAX_LOGPROBS, f"in [0, {_MAX_LOGPROBS}]"),
        ("n", n := sampling.n, n is None or 1 <= n <= _MAX_N, f"in [1, {_MAX_N}]"),
    )
    for name, value, holds, limit in rules:
        if not holds:
            yield _violation(name, f"is {value}, must be {limit}")
    for index, token_id in enumerate(sampling.stop_token_ids):
        if token_id >= model.logits_width:
            yield _violation("stop_token_ids", _foreign(token_id, index, model))
            break
    for name, neutral in _NOT_SUPPORTED.items():
        value = getattr(sampling, name)
        if value is not None and value != neutral:
            yield _violation(name, f"is {_as_json(value)}, is not supported yet: leave it out")


def _check_text(sampling: SamplingInput, *, has_text: bool) -> Iterator[Violation]:
    """What concerns the text of the output, which a model without a tokenizer does not give."""
    if len(sampling.stop) > _MAX_STOPS:
        yield _violation("stop", f"has {len(sampling.stop)} strings, must have at most {_MAX_STOPS}")
    for index, string in enumerate(sampling.stop[:_MAX_STOPS]):
        if not 1 <= len(string) <= _MAX_STOP_CHARACTERS:
            limit = f"must have 1 to {_MAX_STOP_CHARACTERS}"
            yield _violation(f"stop[{index}]", f"has {len(string)} characters, {limit}")
    if not has_text:
        for name, value in (("stop", sampling.stop), ("echo", sampling.echo)):
            if value:
                yield _violation(name, f"is {_as_json(value)}, but the model has no tokenizer and gives no text")


def _check_parallel(sampling: SamplingInput, defaults: SamplingDefaults) -> Iterator[Violation]:
    temperature = defaults.temperature if sampling.temperature is None else sampling.temperature
    if sampling.n is not None and 1 < sampling.n <= _MAX_N and temperature == 0:
        whose = ", the model's default" if sampling.temperature is None else ""
        why = f"sampling_params.temperature is 0{whose}, and greedy sequences are all the same"
        yield _violation("n", f"is {sampling.n}, must be 1: {why}")


def check_prompt(prompt: EncodedPrompt, max_tokens: int | None, model: ModelInfo) -> Iterator[Violation]:
    """What is wrong with a prompt, alone and together with max_tokens."""
    yield from prompt.violations
    if prompt.violations:
        return
    length = len(prompt.token_ids)
    if length == 0:
        yield Violation(field=prompt.field, description="is empty, must give at least one token")
        return
    if length >= model.max_model_len:
        most = model.max_model_len - 1
        yield Violation(
            field=prompt.field,
            description=f"has {length} tokens, must have at most {most} (max_model_len {model.max_model_len}, less one "
            "to generate)",
        )
        return
    if max_tokens is not None and length + max_tokens > model.max_model_len:
        yield _violation(
            "max_tokens",
            f"is {max_tokens}, with a prompt of {length} tokens that makes {length + max_tokens}, must be at most "
            f"{model.max_model_len} (max_model_len)",
        )
    yield from check_token_ids(prompt.field, prompt.token_ids, model)


def check_token_ids(field: str, token_ids: Sequence[int], model: ModelInfo) -> Iterator[Violation]:
    """The first id that the model does not have."""
    foreign = next((index for index, token_id in enumerate(token_ids) if token_id >= model.logits_width), None)
    if foreign is not None:
        yield Violation(field=field, description=_foreign(token_ids[foreign], foreign, model))


def _foreign(token_id: int, index: int, model: ModelInfo) -> str:
    return f"has {token_id} at index {index}, must be below {model.logits_width} (the width of the logits)"


def _violation(name: str, description: str) -> Violation:
    return Violation(field=f"sampling_params.{name}", description=description)


def _as_json(value: object) -> str:
    """The form that callers write in whatever language; a long one is cut."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 64 else f"{text[:64]}..."
