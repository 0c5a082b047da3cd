"""What the front end knows of the model that the worker serves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """served_model_name: what requests may give in `model`. num_blocks, block_size: the KV cache that plans use.
    The rest as in GetModelInfoResponse."""

    served_model_name: str
    architecture: str
    dtype: str
    max_model_len: int
    logits_width: int
    block_size: int
    num_blocks: int
    tokenizer_digest: bytes = b""
    weights_digest: bytes = b""

    @property
    def max_sequence_len(self) -> int:
        """Most tokens that one sequence can reach: the last one is never fed back, so it needs no place in a block."""
        return min(self.max_model_len, self.num_blocks * self.block_size + 1)
