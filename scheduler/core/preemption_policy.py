"""Who is preempted when the pool is dry, and how: the one place that weighs recomputing against copying.

Recomputing costs the computed tokens over the prefill rate; swapping costs twice the copied bytes (out and in again)
over the copy rate. Rates are integers that were measured elsewhere and recorded, so that a replay decides the same.

The victim is among the last few in order of service, so that who came first is never stopped by who came later; of
those, the one that costs the least time per block that becomes available. Ties take the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scheduler.core.live import LiveSequence, blocks_for

VICTIM_WINDOW = 4
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tokens per second of prefill, bytes per second of block copies. The defaults are a modest CPU's."""

    prefill_tokens_per_s: int = 2_000
    copy_bytes_per_s: int = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running sequence that could be preempted: its computed tokens, and how many blocks that would free."""

    sequence: LiveSequence
    num_computed: int
    num_freed: int


class PreemptionPolicy:
    """Chooses by cost. mode: as CoreConfig.preemption_mode."""

    def __init__(self, mode: Literal["auto", "recompute", "swap"], *, block_size: int, bytes_per_block: int) -> None:
        self.rates = Rates()
        self._mode = mode
        self._block_size = block_size
        self._bytes_per_block = bytes_per_block

    def choose(self, candidates: Sequence[Candidate], num_host_free: int) -> tuple[Candidate, bool]:
        """The victim, and whether to swap it. candidates: in order of service, at least one."""
        best, best_swaps, best_cost = candidates[-1], False, (2, 0)
        for candidate in reversed(candidates):
            swaps, cost_ns = self._mode_of(candidate, num_host_free)
            # Sequences that free nothing are the last resort; costs are compared as integers, per block.
            cost = (1, cost_ns) if candidate.num_freed == 0 else (0, cost_ns // candidate.num_freed)
            if cost < best_cost:
                best, best_swaps, best_cost = candidate, swaps, cost
        return best, best_swaps

    def _mode_of(self, candidate: Candidate, num_host_free: int) -> tuple[bool, int]:
        """Whether to swap this one, and what the cheaper way costs in nanoseconds."""
        num_blocks = blocks_for(candidate.num_computed, self._block_size)
        recompute_ns = candidate.num_computed * _NS // self.rates.prefill_tokens_per_s
        swap_ns = 2 * num_blocks * self._bytes_per_block * _NS // self.rates.copy_bytes_per_s
        if self._mode == "recompute" or num_blocks == 0 or num_blocks > num_host_free:
            return False, recompute_ns
        if self._mode == "swap" or swap_ns < recompute_ns:
            return True, swap_ns
        return False, recompute_ns
