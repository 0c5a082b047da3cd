"""What prefill and block copies cost on the worker, measured from its results, for the core's preemption policy.

Medians of the last few samples: a worker's first copies touch fresh memory and read many times too slow. The core is
told only when a rate has moved by a fifth, because what it is told is recorded with its other inputs.
"""

from __future__ import annotations

import statistics
from collections import deque

from scheduler.core.plan import StepPlan
from scheduler.core.preemption_policy import Rates
from scheduler.core.result import StepResult

_WINDOW = 9
_MOVED = 0.2
_MIN_PREFILL_TOKENS = 64
_MIN_PREFILL_SHARE = 0.8
_NS = 1_000_000_000


class RateMeter:
    """Learns from every settled step. bytes_per_block: of keys and values over all layers."""

    def __init__(self, bytes_per_block: int) -> None:
        self._bytes_per_block = bytes_per_block
        self._told = Rates()
        self._prefill: deque[int] = deque(maxlen=_WINDOW)
        self._copy: deque[int] = deque(maxlen=_WINDOW)

    def observe(self, plan: StepPlan, result: StepResult) -> Rates | None:
        """The new rates if the core should know of them."""
        compute_ns = result.execute_ns - result.copy_ns
        total = sum(plan.num_tokens)
        prefill = total - plan.num_tokens.count(1)
        prefilled = compute_ns > 0 and prefill >= max(_MIN_PREFILL_TOKENS, _MIN_PREFILL_SHARE * total)
        if prefilled:
            self._prefill.append(max(1, total * _NS // compute_ns))
        blocks = len(plan.swap_out) + len(plan.swap_in) + len(plan.copy_on_write)
        copied = blocks > 0 and result.copy_ns > 0
        if copied:
            self._copy.append(max(1, blocks * self._bytes_per_block * _NS // result.copy_ns))
        if not prefilled and not copied:
            return None
        measured = Rates(
            prefill_tokens_per_s=_median(self._prefill, self._told.prefill_tokens_per_s),
            copy_bytes_per_s=_median(self._copy, self._told.copy_bytes_per_s),
        )
        if not _moved(measured, self._told):
            return None
        self._told = measured
        return measured


def _median(samples: deque[int], otherwise: int) -> int:
    return int(statistics.median(samples)) if samples else otherwise


def _moved(new: Rates, old: Rates) -> bool:
    pairs = (
        (new.prefill_tokens_per_s, old.prefill_tokens_per_s),
        (new.copy_bytes_per_s, old.copy_bytes_per_s),
    )
    return any(abs(now - before) > _MOVED * before for now, before in pairs)
