"""The tensors of one step, derived from the sequence table and the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worker.device_io import DeviceIO
from worker.sequence_table import SequenceTable
from worker.step import StepPlan


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


def build_input_batch(table: SequenceTable, plan: StepPlan, block_size: int, io: DeviceIO) -> InputBatch:
    """The batch of a plan that the table has applied and not committed yet; at least one row is scheduled."""
    rows, num_tokens = plan.rows, plan.num_tokens
    starts = table.num_computed[rows]  # [S], position of each row's first token
    seq_lens = starts + num_tokens
    query_start_loc = np.zeros(rows.size + 1, np.int32)
    np.cumsum(num_tokens, dtype=np.int32, out=query_start_loc[1:])
    if query_start_loc[-1] == rows.size:  # a token a row: nothing to spread
        row_of_token, positions = rows, starts
    else:
        row_of_token = np.repeat(rows, num_tokens)  # [T]
        # A token's position is its row's first position plus its place within the row.
        positions = np.arange(row_of_token.size, dtype=np.int32) + np.repeat(starts - query_start_loc[:-1], num_tokens)
    indices = positions // block_size
    # block * size + offset, the offset being position - index * size
    slot_mapping = (table.block_tables[row_of_token, indices] - indices) * np.int64(block_size) + positions
    max_blocks = -(-int(seq_lens.max()) // block_size)
    logits_indices = query_start_loc[1:][plan.max_samples > 0].astype(np.int64) - 1
    columns: dict[str, npt.NDArray[Any]] = {
        "token_ids": table.token_ids[row_of_token, positions].astype(np.int64),
        "positions": positions,
        "slot_mapping": slot_mapping,
        "query_start_loc": query_start_loc,
        "seq_lens": seq_lens,
        "block_tables": table.block_tables[rows, :max_blocks],
        "logits_indices": logits_indices,
    }
    return InputBatch(**io.upload(columns))
