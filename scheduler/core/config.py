"""The limits that the core works within."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Limits of one worker group.

    num_blocks: KV cache blocks on the worker. block_size: tokens per block.
    max_num_seqs: sequences that run at once, the number of rows.
    max_num_batched_tokens: tokens computed per step at most, the token budget.
    max_plans_in_flight: plans sent whose result is not back, at most.
    enable_prefix_caching: share blocks of equal prefixes.
    max_num_waiting: sequences in the waiting queue at most; `add` refuses more.
    watermark: blocks that an admission leaves available while others run, so that those can grow.
    model_key: what makes two models' KV differ (the weights' digest); part of every prefix key.
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_plans_in_flight: int = 2
    enable_prefix_caching: bool = True
    max_num_waiting: int = 4096
    watermark: int = 0
    model_key: bytes = b""

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_num_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
        if self.max_plans_in_flight not in (1, 2):
            raise ValueError(f"max_plans_in_flight must be 1 or 2, is {self.max_plans_in_flight}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running sequence decodes one token per step"
            )
        if not 0 <= self.watermark < self.num_blocks:
            raise ValueError(f"watermark must be in [0, num_blocks = {self.num_blocks}), is {self.watermark}")
