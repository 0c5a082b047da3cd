"""Rotary position embeddings: frequencies of each published scaling, and the table that the kernels read.

The arithmetic is float32 in the order that transformers uses, so that both arrive at the same bits.

Sources: RoPE, arXiv:2104.09864; linear scaling ("position interpolation"), arXiv:2306.15595; YaRN, arXiv:2309.00071;
llama3, the reference code of Llama 3.1. Dynamic NTK scaling changes the frequencies of tokens already in the KV cache
as a sequence grows, so it has no exact paged form, and longrope switches between two sets: both are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from worker.models.config import Rope

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class UnsupportedRopeError(ValueError):
    """A rope_type outside SUPPORTED_ROPE_TYPES."""

    def __init__(self, rope_type: str) -> None:
        super().__init__(f"rope_type {rope_type!r}")
        self.rope_type = rope_type


def make_rope(parameters: Mapping[str, Any], head_dim: int) -> Rope:
    """Frequencies from `rope_parameters` as transformers names them (rope_theta, rope_type, factor, ...).

    Raises UnsupportedRopeError for a scaling that is not served, KeyError for a parameter that its type needs.
    """
    theta = float(parameters["rope_theta"])
    rope_type = parameters.get("rope_type") or "default"
    if rope_type == "default":
        return _rope(_inv_freq(theta, head_dim))
    if rope_type == "linear":
        return _rope(_inv_freq(theta, head_dim) / parameters["factor"])
    if rope_type == "llama3":
        return _rope(_llama3(_inv_freq(theta, head_dim), parameters))
    if rope_type == "yarn":
        return _yarn(theta, head_dim, parameters)
    raise UnsupportedRopeError(rope_type)


def divide_frequencies(rope: Rope, divisors: Sequence[float]) -> Rope:
    """Scaling given as one divisor per frequency, which is how GGUF files store llama3's."""
    inv_freq = torch.tensor(rope.inv_freq, dtype=torch.float32) / torch.tensor(divisors, dtype=torch.float32)
    return _rope(inv_freq, rope.attention_factor)


def cos_sin_table(rope: Rope, max_positions: int) -> torch.Tensor:
    """[max_positions, D] float32: cosines of the D/2 angles of each position, then their sines."""
    positions = torch.arange(max_positions, dtype=torch.float32)
    angles = positions[:, None] * torch.tensor(rope.inv_freq, dtype=torch.float32)[None, :]  # [P, D/2]
    return torch.cat((angles.cos(), angles.sin()), dim=1) * rope.attention_factor


def _rope(inv_freq: torch.Tensor, attention_factor: float = 1.0) -> Rope:
    return Rope(inv_freq=tuple(inv_freq.tolist()), attention_factor=attention_factor)


def _inv_freq(theta: float, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    return 1.0 / (theta**exponents)


def _llama3(inv_freq: torch.Tensor, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Divides long wavelengths by the factor, leaves short ones, and blends between."""
    factor = parameters["factor"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    original = parameters["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / inv_freq
    scaled = torch.where(wavelengths > original / low, inv_freq / factor, inv_freq)
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * scaled / factor + smooth * scaled
    is_medium = ~(wavelengths < original / high) & ~(wavelengths > original / low)
    return torch.where(is_medium, blended, scaled)


def _yarn(theta: float, head_dim: int, parameters: Mapping[str, Any]) -> Rope:
    """Extrapolates pairs that turn often within the original context, interpolates those that hardly turn."""
    factor = float(parameters["factor"])
    original = parameters["original_max_position_embeddings"]

    def pair_turning(times: float) -> float:
        """Index of the pair that turns so many times within the original context."""
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_turning(parameters.get("beta_fast") or 32), pair_turning(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # an empty ramp is a step
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    periods = theta ** (torch.arange(0, head_dim, 2).to(torch.float32) / head_dim)
    extrapolated = 1 - ramp
    inv_freq = (1.0 / (factor * periods)) * (1 - extrapolated) + (1.0 / periods) * extrapolated
    return _rope(inv_freq, _yarn_attention_factor(factor, parameters))


def _yarn_attention_factor(factor: float, parameters: Mapping[str, Any]) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def temperature(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return temperature(mscale) / temperature(mscale_all_dim)
    return temperature(1.0)
