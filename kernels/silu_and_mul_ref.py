"""Reference of the gated activation of a Llama MLP, in float32 inside."""

from __future__ import annotations

import torch


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 I] -> silu(first half) * second half, [T, I], in the input's dtype."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)
