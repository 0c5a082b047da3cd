"""Rows to sample and rules for them, for tests on any device; nothing here needs the native library."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from worker.row_rules import RowRules
from worker.sampler import SamplingColumns
from worker.step import LogitRules

WIDTH = 12


def columns(num_rows: int, **values: object) -> SamplingColumns:
    """Greedy rows without logprobs, except for the values given: one for all rows, or a list."""
    kinds = {
        "temperature": (np.float64, 0.0),
        "top_k": (np.int32, 0),
        "top_p": (np.float64, 1.0),
        "min_p": (np.float64, 0.0),
        "num_logprobs": (np.int32, -1),
        "seeds": (np.uint64, 0),
        "output_index": (np.int64, 0),
    }
    return SamplingColumns(
        **{
            name: np.broadcast_to(np.array(values.get(name, default), kind), num_rows).copy()
            for name, (kind, default) in kinds.items()
        }
    )


def mixed_rows(width: int) -> tuple[torch.Tensor, SamplingColumns]:
    """Rows of every kind, over logits peaked like a model's."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn((8, width), generator=generator) * 3
    return logits, columns(
        8,
        temperature=[0, 1, 0.7, 1, 1, 0.9, 2, 0],
        top_k=[0, 0, 50, 0, 0, 20, 0, 5],
        top_p=[1, 1, 1, 0.9, 1, 0.8, 0.999, 1],
        min_p=[0, 0, 0, 0, 0.05, 0.01, 0, 0],
        num_logprobs=[-1, 0, 3, -1, 20, -1, 1, 0],
        seeds=[0, 1, 2**64 - 1, 3, 4, 5, 6, 7],
        output_index=[0, 5, 2**31, 7, 8, 9, 10, 11],
    )


def rules_of(
    prompt: list[int] | None = None, output: list[int] | None = None, width: int = WIDTH, **values: Any
) -> RowRules:
    """Of a row with these tokens; logit_bias: a dict."""
    if "logit_bias" in values:
        bias = values.pop("logit_bias")
        values["bias_token_ids"] = np.array(list(bias), np.int64)
        values["biases"] = np.array(list(bias.values()), np.float32)
    for ids in ("masked_token_ids", "allowed_token_ids"):
        if ids in values:
            values[ids] = np.array(values[ids], np.int64)
    return RowRules(LogitRules(**values), prompt or [], output or [], width=width)
