"""What the front end knows of the model that the worker serves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """served_model_name: what requests may give in `model`. The rest as in GetModelInfoResponse."""

    served_model_name: str
    architecture: str
    dtype: str
    max_model_len: int
    logits_width: int
    block_size: int
    tokenizer_digest: bytes = b""
    weights_digest: bytes = b""
