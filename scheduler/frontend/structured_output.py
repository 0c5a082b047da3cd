"""Structured output: from what a request asks for to a grammar of llguidance that is known to be good.

Checked on threads of its own, for a grammar may take tens of milliseconds: llguidance bounds that, and lets the event
loop go on meanwhile. The check compiles the grammar over a vocabulary of single bytes, which costs no memory to speak
of, and asks for its first mask. What only the model's own vocabulary shows ends the request on the worker.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from scheduler.frontend.errors import Violation
from scheduler.frontend.request import SamplingInput
from scheduler.frontend.sampling_validation import sampling_violation

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # of the stubs alone

_FIELDS: Final = ("json_schema", "json_object", "regex", "choice", "grammar")
_MAX_BYTES: Final = 65536
_TIMEOUT_S: Final = 5.0
_THREADS: Final = 2  # one that is slow does not hold up all others
# No whitespace of the model's own choice: it may never stop to choose more of it.
_JSON_STYLE: Final[JsonCompileOptions] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_BYTE_EOS: Final = 256
# Where in the grammar something is wrong, and what the parser of regular expressions says of it in its last line.
_POSITION: Final = re.compile(r"at \d+\(\d+\): ")
_REGEX_REASON: Final = re.compile(r"^error: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGrammar:
    """grammar: in the form of llguidance; empty if none was asked for or if there are violations."""

    grammar: str = ""
    violations: tuple[Violation, ...] = ()


NO_GRAMMAR: Final = CheckedGrammar()


class _RefusedError(Exception):
    """The text is no grammar, or none that can be served."""


class GrammarChecker:
    """special_tokens: texts of the model's special tokens, which a Lark grammar may name."""

    def __init__(self, special_tokens: Sequence[bytes]) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._special_tokens = special_tokens
        self._tokenizer: LLTokenizer | None = None

    async def check(self, sampling: SamplingInput, *, can_end: bool) -> CheckedGrammar:
        """What the request asks for. can_end: whether the model has an EOS token."""
        asked = [name for name in _FIELDS if getattr(sampling, name) is not None]
        if not asked:
            return NO_GRAMMAR
        (name,) = asked
        if (why := _unusable(name, sampling, can_end)) is not None:
            return _refused(name, why)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                grammar = await loop.run_in_executor(self._threads, self._compile, name, getattr(sampling, name))
        except TimeoutError:
            return _refused(name, f"took more than {_TIMEOUT_S:g} s to be checked, must be simpler")
        except _RefusedError as error:
            return _refused(name, str(error))
        return CheckedGrammar(grammar=grammar)

    def _compile(self, name: str, value: object) -> str:
        """The grammar of llguidance, compiled once to see whether it is one."""
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(self._special_tokens)))
        try:
            grammar: str = _TO_GRAMMAR[name](value)
        except Exception as error:  # ValueError of a schema; and the converter of EBNF raises what it likes
            raise _RefusedError(_reason(name, str(error))) from error
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            message = matcher.get_error()
            raise _RefusedError("matches no text" if message.startswith("NoExtension") else _reason(name, message))
        return grammar


class _Bytes:
    """What llguidance asks of a tokenizer, for one whose tokens are the bytes, EOS and the special tokens."""

    def __init__(self, special_tokens: Sequence[bytes]) -> None:
        self.eos_token_id = _BYTE_EOS
        self.bos_token_id = None
        self.tokens = [*(bytes([byte]) for byte in range(_BYTE_EOS)), b"<|octavo-eos|>", *special_tokens]
        self.special_token_ids = list(range(_BYTE_EOS, len(self.tokens)))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _unusable(name: str, sampling: SamplingInput, can_end: bool) -> str | None:
    """What is wrong before anything is compiled."""
    value = getattr(sampling, name)
    if not can_end:
        return "needs a model with an EOS token, and this one has none: leave it out"
    if sampling.ignore_eos:
        return "ends with EOS, which sampling_params.ignore_eos forbids: give one of them"
    if name == "json_object":
        return None if value else "is false, must be true or left out"
    if name in ("json_schema", "grammar") and not value.strip():
        return "is empty, must have at least one rule" if name == "grammar" else "is empty, must be a JSON schema"
    if name == "choice" and not value:
        return "is empty, must have at least one text"
    if name == "choice" and not all(value):
        return f"has an empty text at index {value.index('')}, must have none"
    size = sum(len(text.encode()) for text in value) if name == "choice" else len(value.encode())
    return f"has {size} bytes, must have at most {_MAX_BYTES}" if size > _MAX_BYTES else None


def _of_schema(schema: str) -> str:
    if schema.strip() == "true":
        schema = "{}"  # the same, in the only form that takes the options
    if not schema.lstrip().startswith("{"):
        raise ValueError("the schema must be a JSON object or true")
    return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_STYLE)


def _of_choice(texts: Sequence[str]) -> str:
    alternatives = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return LLMatcher.grammar_from_lark(f"start: {alternatives}")


_TO_GRAMMAR: Final[dict[str, Callable[..., str]]] = {
    "json_schema": _of_schema,
    "json_object": lambda _: _of_schema('{"type": "object"}'),
    "regex": LLMatcher.grammar_from_regex,
    "choice": _of_choice,
    "grammar": lambda text: LLMatcher.grammar_from_lark(any_to_lark(text)),
}


def _reason(name: str, message: str) -> str:
    """One line of the error. A position is of use to who wrote the grammar, not to who gave another form."""
    first = (message.strip().splitlines() or ["it is malformed"])[0]
    position = _POSITION.match(first)
    if "regex parse error:" in message and (reasons := _REGEX_REASON.findall(message)):
        first = (position[0] if position else "") + f"invalid regex: {reasons[-1]}"
    return f"is refused: {first if name == 'grammar' else _POSITION.sub('', first, count=1)}"


def _refused(name: str, description: str) -> CheckedGrammar:
    return CheckedGrammar(violations=(sampling_violation(name, description),))
