"""Structured output: which tokens a row's grammar allows next.

A matcher follows the tokens that its row samples and gives the mask of the next one. It works on threads of its own,
beside the forward pass: `start` asks for a mask when a step begins, `allowed` takes it when the logits are there. Plans
carry no tokens, so nothing of this waits for the scheduler. A new admission brings the output so far, from which the
state is rebuilt.

Compiling and masks are bounded by the limits of llguidance; a row whose mask takes more processor time than
`MASK_BUDGET_S` all the same ends, and one that nothing can follow ends as well.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import structlog
from llguidance import LLMatcher, LLTokenizer

from worker.step import LogitRules, RowFlag

log = structlog.get_logger()

MASK_BUDGET_S = 0.005
"""Processor time of one mask."""

COMPILE_BUDGET_S = 1.0
"""Processor time of compiling a grammar, its first mask included: that fills caches which the later ones share."""

_MAX_THREADS = 4
_MAX_COMPILED = 64
_LOGGED_CHARACTERS = 200
# Why llguidance stops a grammar that takes too much of anything; other reasons mean that nothing can follow.
_TOO_COMPLEX = ("ParserTooComplex", "LexerTooComplex")
# In the first line about such a limit, where it is met while tokens are taken in and not while a mask is made: it is an
# internal error then.
_TOO_MANY = "too many"

_Mask = tuple[npt.NDArray[np.bool_] | None, RowFlag]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """json: gives the content of a tokenizer.json. eos_token_ids: those that the model's files name, at least one."""

    json: Callable[[], str]
    eos_token_ids: tuple[int, ...]


class GrammarMatchers:
    """Makes the matchers of one model's rows. width: of the logits, at least that of the vocabulary."""

    def __init__(self, source: TokenizerSource, width: int, *, mask_budget_s: float = MASK_BUDGET_S) -> None:
        self.mask_budget_s = mask_budget_s
        self._width = width
        num_threads = max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) // 2))
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="grammar")
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._tokenizer: Future[LLTokenizer] = self._threads.submit(self._load, source)

    def matcher(self, rules: LogitRules, output: list[int]) -> RowMatcher:
        """See `worker.sequence_table.Grammars`."""
        return RowMatcher(self, rules, output)

    def submit(self, work: Callable[[], _Mask]) -> Future[_Mask]:
        """Has a mask computed on another thread."""
        return self._threads.submit(work)

    def compile(self, grammar: str) -> LLMatcher:
        """A matcher at its beginning. Equal grammars, of the samples of one prompt for example, are compiled once."""
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
                return compiled.deep_copy()
        compiled = LLMatcher(self._tokenizer.result(), grammar, log_level=0)
        if not compiled.is_error():
            compiled.compute_bitmask()
        with self._lock:
            self._compiled[grammar] = compiled
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
            return compiled.deep_copy()

    def allowed_ids(self, bitmask: bytes) -> npt.NDArray[np.bool_]:
        """[width] of a mask of llguidance."""
        bits = np.unpackbits(np.frombuffer(bitmask, np.uint8), count=self._width, bitorder="little")
        return bits.view(np.bool_)

    def _load(self, source: TokenizerSource) -> LLTokenizer:
        return LLTokenizer(source.json(), n_vocab=self._width, eos_token=list(source.eos_token_ids))


class RowMatcher:
    """Satisfies `worker.row_rules.Matcher`. `_next_mask` runs on another thread, between `start` and `allowed`."""

    def __init__(self, matchers: GrammarMatchers, rules: LogitRules, output: list[int]) -> None:
        self._matchers = matchers
        self._grammar = rules.grammar
        self._eos = frozenset(rules.eos_token_ids)
        self._unseen = list(output)
        self._matcher: LLMatcher | None = None
        self._mask: Future[_Mask] | None = None
        self._ended = False  # by EOS; the row samples once more before the scheduler knows, and may sample anything
        self._failed = RowFlag.OK

    def append(self, token: int) -> None:
        """The output goes on."""
        self._unseen.append(token)

    def start(self) -> None:
        """The next mask will be asked for; it is computed meanwhile."""
        self._mask = self._matchers.submit(self._next_mask)

    def allowed(self) -> _Mask:
        """The mask of the next token [width], None for anything, and the flag of a row that cannot go on."""
        if self._mask is None:
            self.start()
        assert self._mask is not None
        mask = self._mask.result()
        self._mask = None
        return mask

    def _next_mask(self) -> _Mask:
        try:
            return self._compute_mask()
        except BaseException:  # llguidance's panics are no Exceptions; whatever it is, it must end this row only
            log.exception("a grammar failed on a defect", grammar=self._grammar[:_LOGGED_CHARACTERS])
            return self._fail(RowFlag.DEAD_END)

    def _compute_mask(self) -> _Mask:
        if self._ended or self._failed is not RowFlag.OK:
            return None, self._failed
        if self._matcher is None:
            begin = time.thread_time()
            self._matcher = self._matchers.compile(self._grammar)
            if time.thread_time() - begin > COMPILE_BUDGET_S:
                return self._fail(RowFlag.GRAMMAR_TOO_SLOW)
        tokens, self._unseen = self._unseen, []
        self._ended = bool(tokens) and tokens[-1] in self._eos
        if self._ended:
            return None, RowFlag.OK
        if tokens and not self._matcher.consume_tokens(tokens):
            return self._fail(self._reason())
        bitmask, took = _timed_mask(self._matcher)
        if took > self._matchers.mask_budget_s and not self._matcher.is_error():
            # Once more, with warm caches: a disturbed processor is no reason to end a row.
            bitmask, took = _timed_mask(self._matcher)
        if self._matcher.is_error():
            return self._fail(self._reason())
        if took > self._matchers.mask_budget_s:
            return self._fail(RowFlag.GRAMMAR_TOO_SLOW)
        allowed = self._matchers.allowed_ids(bitmask)
        allowed[list(self._eos)] = self._matcher.is_accepting()
        return allowed, RowFlag.OK

    def _reason(self) -> RowFlag:
        assert self._matcher is not None
        error = self._matcher.get_error().partition("\n")[0].lower()
        too_complex = self._matcher.stop_reason() in _TOO_COMPLEX or _TOO_MANY in error
        return RowFlag.GRAMMAR_TOO_SLOW if too_complex else RowFlag.DEAD_END

    def _fail(self, flag: RowFlag) -> _Mask:
        self._failed = flag
        return None, flag


def _timed_mask(matcher: LLMatcher) -> tuple[bytes, float]:
    """The mask of the next token, and the processor time that it took in seconds."""
    begin = time.thread_time()
    bitmask = matcher.compute_bitmask()
    return bitmask, time.thread_time() - begin
