"""The limits that the core works within."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Limits of one worker group.

    num_blocks: KV cache blocks on the worker. num_host_blocks: blocks of its host pool; 0: nothing is swapped.
    block_size: tokens per block. bytes_per_block: of keys and values, for the cost of copying.
    max_num_seqs: sequences that run at once, the number of rows.
    max_num_batched_tokens: tokens computed per step at most, the token budget.
    max_plans_in_flight: plans sent whose result is not back, at most.
    enable_prefix_caching: share blocks of equal prefixes.
    policy: "priority" serves lower priorities first, ties in order of arrival, and preempts for them; "fcfs" looks at
      the order of arrival alone.
    preemption_mode: "auto" takes what costs less time, "swap" copies to the host pool while it has room, "recompute"
      never does.
    max_overtakes: how often a sequence that waits for blocks may be passed by others that fit.
    max_num_waiting: sequences in the waiting queue at most; `add` refuses more.
    max_num_waiting_tokens: prompt tokens of those at most; None is no limit. A prompt that is longer than all may be is
      taken when nothing waits.
    watermark: blocks that an admission leaves available while others run, so that those can grow.
    """

    num_blocks: int
    num_host_blocks: int = 0
    block_size: int = 16
    bytes_per_block: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_plans_in_flight: int = 2
    enable_prefix_caching: bool = True
    policy: Literal["priority", "fcfs"] = "priority"
    preemption_mode: Literal["auto", "recompute", "swap"] = "auto"
    max_overtakes: int = 8
    max_num_waiting: int = 4096
    max_num_waiting_tokens: int | None = None
    watermark: int = 0

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_num_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
        if self.max_num_waiting_tokens is not None and self.max_num_waiting_tokens < 1:
            raise ValueError(f"max_num_waiting_tokens must be at least 1, is {self.max_num_waiting_tokens}")
        for name in ("num_host_blocks", "bytes_per_block", "max_overtakes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, is {getattr(self, name)}")
        if self.policy not in ("priority", "fcfs"):
            raise ValueError(f"policy must be priority or fcfs, is {self.policy!r}")
        if self.preemption_mode not in ("auto", "recompute", "swap"):
            raise ValueError(f"preemption_mode must be auto, recompute or swap, is {self.preemption_mode!r}")
        if self.max_plans_in_flight not in (1, 2, 4):
            raise ValueError(f"max_plans_in_flight must be 1, 2 or 4, is {self.max_plans_in_flight}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running sequence decodes one token per step"
            )
        if not 0 <= self.watermark < self.num_blocks:
            raise ValueError(f"watermark must be in [0, num_blocks = {self.num_blocks}), is {self.watermark}")
