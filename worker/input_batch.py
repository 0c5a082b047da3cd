"""The tensors of one step, derived from the sequence table and the plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch:
    """What the model reads in a step: T tokens of S rows, in the order of the plan's scheduled rows.

    token_ids [T] int64; positions [T] int32; slot_mapping [T] int64 (block * block size + offset);
    query_start_loc [S + 1] int32; seq_lens [S] int32, this step's tokens included;
    block_tables [S, max blocks of the step] int32, entries past a row's length undefined;
    logits_indices [R] int64: places in 0..T-1 whose logits are wanted, one per row that samples.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    logits_indices: torch.Tensor
