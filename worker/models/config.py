"""What a decoder is made of: one description for every architecture and every file format.

The loaders fill it from config.json or from GGUF metadata; the model is built from it alone. Everything that a file may
leave open is decided when it is made, so nothing downstream asks for a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding, with its scaling already applied.

    inv_freq: radians per position of each of the D/2 pairs of a head, exact float32 values.
    attention_factor: multiplies cosines and sines (YaRN's temperature), 1 without.
    """

    inv_freq: tuple[float, ...] = field(repr=False)
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer with RMS norms, rotary positions and a gated SiLU MLP.

    vocab_size: rows of the embedding, and the width of the logits.
    max_positions: most tokens of a sequence.
    sliding_window: positions that a query sees, itself included; 0 is all of them.
    checkpoint_dtype: type that the weights were published in; float32 or bfloat16 (what else is stored is converted).
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    rope: Rope
    tie_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    sliding_window: int
    checkpoint_dtype: torch.dtype

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden_size",
            "intermediate_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "vocab_size",
            "max_positions",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, must be even")
        if len(self.rope.inv_freq) != self.head_dim // 2:
            raise ValueError(
                f"rope has {len(self.rope.inv_freq)} frequencies, head_dim {self.head_dim} needs half that"
            )
        if self.sliding_window < 0:
            raise ValueError(f"sliding_window is {self.sliding_window}, must be 0 (none) or more")

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; values have the same."""
        return self.num_kv_heads * self.head_dim

    @property
    def attention_scale(self) -> float:
        """What the product of a query and a key is multiplied by."""
        return float(self.head_dim**-0.5)
