"""The rules that a request must keep, and the values it gets for what it leaves open.

All violations of a request are found and reported together, each with the field's path, its value and the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.core.sequence import Sampling
from scheduler.frontend.errors import InvalidRequestError, Violation
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.parsing.choice import check_parsers
from scheduler.frontend.prompts import EncodedPrompt
from scheduler.frontend.request import GenerateInput
from scheduler.frontend.sampling_defaults import SamplingDefaults
from scheduler.frontend.sampling_validation import (
    check_sampling,
    encode_bad_words,
    foreign_id,
    resolve,
    sampling_violation,
)
from scheduler.frontend.stream import MAX_PIECE_TOKENS
from scheduler.frontend.structured_output import NO_GRAMMAR, CheckedGrammar

_MAX_NAME_BYTES: Final = 256


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
    stream_interval: int


def validate(
    request: GenerateInput,
    prompt: EncodedPrompt,
    *,
    model: ModelInfo,
    eos_token_ids: tuple[int, ...],
    defaults: SamplingDefaults,
    has_text: bool = True,
    encode: Callable[[str], Sequence[int]] | None = None,
    grammar: CheckedGrammar = NO_GRAMMAR,
) -> ValidatedRequest:
    """Raises InvalidRequestError with all violations. The model's name is not looked at.

    has_text: whether the model has a tokenizer. encode: with it, the token ids of a text without any that are special.
    grammar: of the structured output that is asked for.
    """
    bad_words = encode_bad_words(request.sampling.bad_words, encode, model)
    violations = (
        *_check_fields(request),
        *check_sampling(request.sampling, model, defaults, has_text=has_text),
        *bad_words.violations,
        *grammar.violations,
        *check_parsers(request),
        *check_prompt(prompt, request.sampling.max_tokens, model),
    )
    if violations:
        raise InvalidRequestError(violations)
    sampling = request.sampling
    eos = () if sampling.ignore_eos else eos_token_ids
    stop_token_ids = frozenset((*eos, *sampling.stop_token_ids))
    return ValidatedRequest(
        prompt=tuple(prompt.token_ids),
        max_tokens=model.max_model_len - len(prompt.token_ids) if sampling.max_tokens is None else sampling.max_tokens,
        open_ended=sampling.max_tokens is None,
        stop_token_ids=stop_token_ids,
        sampling=resolve(
            sampling,
            defaults,
            model,
            stop_token_ids,
            bad_words=bad_words.sequences,
            grammar=grammar.grammar,
            eos_token_ids=eos_token_ids,
        ),
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
        stream_interval=request.stream_interval,
    )


def _check_fields(request: GenerateInput) -> Iterator[Violation]:
    for path in request.unknown_fields:
        yield Violation(field=path, description="is not known to this version of the server")
    for name in ("request_id", "tenant", "cache_salt"):
        size = len(getattr(request, name).encode())
        if size > _MAX_NAME_BYTES:
            yield Violation(field=name, description=f"has {size} bytes, must have at most {_MAX_NAME_BYTES}")
    if not 1 <= request.stream_interval <= MAX_PIECE_TOKENS:
        limit = f"is {request.stream_interval}, must be in [1, {MAX_PIECE_TOKENS}]"
        yield Violation(field="stream_interval", description=limit)


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
        yield sampling_violation(
            "max_tokens",
            f"is {max_tokens}, with a prompt of {length} tokens that makes {length + max_tokens}, must be at most "
            f"{model.max_model_len} (max_model_len)",
        )
    yield from check_token_ids(prompt.field, prompt.token_ids, model)


def check_token_ids(field: str, token_ids: Sequence[int], model: ModelInfo) -> Iterator[Violation]:
    """The first id that the model does not have."""
    foreign = next((index for index, token_id in enumerate(token_ids) if token_id >= model.logits_width), None)
    if foreign is not None:
        yield Violation(field=field, description=foreign_id(token_ids[foreign], foreign, model))
