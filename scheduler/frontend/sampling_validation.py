"""The rules that sampling parameters must keep, and the values that the sampler gets for those left open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduler.core.sequence import Sampling
from scheduler.frontend.errors import Violation
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.request import SamplingInput
from scheduler.frontend.sampling_defaults import SamplingDefaults

MAX_LOGPROBS: Final = 20
_MAX_N: Final = 64
_MAX_BAD_WORDS: Final = 256
_MAX_BAD_WORD_TOKENS: Final = 64
_MAX_BAD_WORD_BYTES: Final = 1024  # of which a tokenizer is not asked for tokens at all
_MAX_BIAS: Final = 100
_MAX_STOPS: Final = 16
_MAX_STOP_CHARACTERS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BadWords:
    """sequences: the token ids of the words, empty if there are violations."""

    sequences: tuple[tuple[int, ...], ...] = ()
    violations: tuple[Violation, ...] = ()


def check_sampling(
    sampling: SamplingInput, model: ModelInfo, defaults: SamplingDefaults, *, has_text: bool
) -> Iterator[Violation]:
    """What is wrong with the parameters, but for what needs the prompt or the tokenizer."""
    yield from _check_ranges(sampling)
    yield from _check_ids(sampling, model)
    yield from _check_parallel(sampling, defaults)
    if sampling.min_tokens and sampling.max_tokens and sampling.min_tokens > sampling.max_tokens:
        limit = f"must be at most {sampling.max_tokens} (sampling_params.max_tokens)"
        yield sampling_violation("min_tokens", f"is {sampling.min_tokens}, {limit}")
    yield from _check_text(sampling, has_text=has_text)


def resolve(
    sampling: SamplingInput,
    defaults: SamplingDefaults,
    model: ModelInfo,
    stop_token_ids: frozenset[int],
    *,
    bad_words: tuple[tuple[int, ...], ...],
    grammar: str,
    eos_token_ids: tuple[int, ...],
) -> Sampling:
    """What the sampler gets. stop_token_ids: all that end the sequence; eos_token_ids: those that the model has."""
    top_k = defaults.top_k if sampling.top_k is None else sampling.top_k
    min_tokens = sampling.min_tokens or 0
    repetition_penalty = sampling.repetition_penalty
    return Sampling(
        temperature=defaults.temperature if sampling.temperature is None else sampling.temperature,
        top_k=top_k if 0 < top_k < model.logits_width else 0,
        top_p=defaults.top_p if sampling.top_p is None else sampling.top_p,
        min_p=defaults.min_p if sampling.min_p is None else sampling.min_p,
        num_logprobs=sampling.logprobs,
        min_tokens=min_tokens,
        masked_token_ids=tuple(sorted(stop_token_ids)) if min_tokens else (),
        presence_penalty=sampling.presence_penalty or 0.0,
        frequency_penalty=sampling.frequency_penalty or 0.0,
        repetition_penalty=defaults.repetition_penalty if repetition_penalty is None else repetition_penalty,
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
        allowed_token_ids=tuple(sorted(set(sampling.allowed_token_ids))),
        bad_words=bad_words,
        grammar=grammar,
        eos_token_ids=eos_token_ids if grammar else (),
        num_prompt_logprobs=sampling.prompt_logprobs,
    )


def encode_bad_words(words: Sequence[str], encode: Callable[[str], Sequence[int]] | None, model: ModelInfo) -> BadWords:
    """The tokens of each word as it is and with a space in front, as it would be in the middle of a text."""
    if words and encode is None:
        return BadWords(violations=(_bad_word("needs the model's tokenizer, and it has none: leave it out"),))
    if len(words) > _MAX_BAD_WORDS:
        return BadWords(violations=(_bad_word(f"has {len(words)} texts, must have at most {_MAX_BAD_WORDS}"),))
    sequences: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        assert encode is not None
        if not word:
            return BadWords(violations=(_bad_word(f"has an empty text at index {index}, must have none"),))
        if (size := len(word.encode())) > _MAX_BAD_WORD_BYTES:
            limit = f"has {size} bytes at index {index}, must have at most {_MAX_BAD_WORD_BYTES}"
            return BadWords(violations=(_bad_word(limit),))
        for text in (word, f" {word}"):
            token_ids = tuple(encode(text))
            if len(token_ids) > _MAX_BAD_WORD_TOKENS:
                limit = f"has {len(token_ids)} tokens at index {index}, must have at most {_MAX_BAD_WORD_TOKENS}"
                return BadWords(violations=(_bad_word(limit),))
            if token_ids and max(token_ids) < model.logits_width:
                sequences[token_ids] = None
    return BadWords(sequences=tuple(sequences))


def _check_ranges(sampling: SamplingInput) -> Iterator[Violation]:
    # Written so that NaN and infinities fail every rule.
    rules: tuple[tuple[str, Any, bool, str], ...] = (
        ("temperature", t := sampling.temperature, t is None or 0 <= t <= 2, "in [0, 2]"),
        ("top_k", k := sampling.top_k, k is None or k >= -1, "at least 1, or 0 or -1 for off"),
        ("top_p", p := sampling.top_p, p is None or 0 < p <= 1, "in (0, 1]"),
        ("min_p", m := sampling.min_p, m is None or 0 <= m <= 1, "in [0, 1]"),
        ("max_tokens", x := sampling.max_tokens, x is None or x >= 1, "at least 1"),
        ("presence_penalty", a := sampling.presence_penalty, a is None or -2 <= a <= 2, "in [-2, 2]"),
        ("frequency_penalty", f := sampling.frequency_penalty, f is None or -2 <= f <= 2, "in [-2, 2]"),
        ("repetition_penalty", r := sampling.repetition_penalty, r is None or 0 < r <= 2, "in (0, 2]"),
        ("logprobs", c := sampling.logprobs, c is None or 0 <= c <= MAX_LOGPROBS, f"in [0, {MAX_LOGPROBS}]"),
        (
            "prompt_logprobs",
            o := sampling.prompt_logprobs,
            o is None or 0 <= o <= MAX_LOGPROBS,
            f"in [0, {MAX_LOGPROBS}]",
        ),
        ("n", n := sampling.n, n is None or 1 <= n <= _MAX_N, f"in [1, {_MAX_N}]"),
    )
    for name, value, holds, limit in rules:
        if not holds:
            yield sampling_violation(name, f"is {value}, must be {limit}")
    for token_id, bias in sampling.logit_bias.items():
        if not -_MAX_BIAS <= bias <= _MAX_BIAS:
            limit = f"must be in [-{_MAX_BIAS}, {_MAX_BIAS}]"
            yield sampling_violation("logit_bias", f"has {bias} for token {token_id}, {limit}")
            break


def _check_ids(sampling: SamplingInput, model: ModelInfo) -> Iterator[Violation]:
    for name in ("stop_token_ids", "allowed_token_ids"):
        for index, token_id in enumerate(getattr(sampling, name)):
            if token_id >= model.logits_width:
                yield sampling_violation(name, foreign_id(token_id, index, model))
                break
    if foreign := [token_id for token_id in sampling.logit_bias if token_id >= model.logits_width]:
        limit = f"must be below {model.logits_width} (the width of the logits)"
        yield sampling_violation("logit_bias", f"has the token {foreign[0]}, {limit}")


def _check_text(sampling: SamplingInput, *, has_text: bool) -> Iterator[Violation]:
    """What concerns the text of the output, which a model without a tokenizer does not give."""
    if len(sampling.stop) > _MAX_STOPS:
        yield sampling_violation("stop", f"has {len(sampling.stop)} strings, must have at most {_MAX_STOPS}")
    for index, string in enumerate(sampling.stop[:_MAX_STOPS]):
        if not 1 <= len(string) <= _MAX_STOP_CHARACTERS:
            limit = f"must have 1 to {_MAX_STOP_CHARACTERS}"
            yield sampling_violation(f"stop[{index}]", f"has {len(string)} characters, {limit}")
    if not has_text:
        for name, value in (("stop", sampling.stop), ("echo", sampling.echo)):
            if value:
                why = "but the model has no tokenizer and gives no text"
                yield sampling_violation(name, f"is {_as_json(value)}, {why}")


def _check_parallel(sampling: SamplingInput, defaults: SamplingDefaults) -> Iterator[Violation]:
    temperature = defaults.temperature if sampling.temperature is None else sampling.temperature
    if sampling.n is not None and 1 < sampling.n <= _MAX_N and temperature == 0:
        whose = ", the model's default" if sampling.temperature is None else ""
        why = f"sampling_params.temperature is 0{whose}, and greedy sequences are all the same"
        yield sampling_violation("n", f"is {sampling.n}, must be 1: {why}")


def foreign_id(token_id: int, index: int, model: ModelInfo) -> str:
    """What is wrong with an id that the model's logits have no place for."""
    return f"has {token_id} at index {index}, must be below {model.logits_width} (the width of the logits)"


def sampling_violation(name: str, description: str) -> Violation:
    """Of a field of SamplingParams."""
    return Violation(field=f"sampling_params.{name}", description=description)


def _bad_word(description: str) -> Violation:
    return sampling_violation("bad_words", description)


def _as_json(value: object) -> str:
    """The form that callers write in whatever language; a long one is cut."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 64 else f"{text[:64]}..."
