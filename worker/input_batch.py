"""The tensors of one step, derived from the sequence table and the plan; or from those of the step before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worker.device_io import DeviceIO
from worker.sampler import SamplingColumns
from worker.sequence_table import SequenceTable
from worker.step import IntColumn, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch:
    """What the model reads in a step: T tokens of S rows, in the order of the plan's scheduled rows.

    token_ids [T] int64; positions [T] int32; slot_mapping [T] int64 (block * block size + offset);
    query_start_loc [S + 1] int32; seq_lens [S] int32, this step's tokens included;
    block_tables [S, max blocks of the step] int32, entries past a row's length undefined;
    logits_indices [R] int64: places in 0..T-1 whose logits are wanted, one per row that samples.

    One batch may serve several steps, with other values in the same tensors.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    logits_indices: torch.Tensor


def build_input_batch(table: SequenceTable, plan: StepPlan, block_size: int, io: DeviceIO) -> InputBatch:
    """The batch of a plan that the table has applied and not committed yet; at least one row is scheduled. It holds
    until the commit."""
    if table.decoding is None:
        columns = _columns(table, plan, block_size)
        # Each row computes at least one token, and samples at most one.
        if not columns["token_ids"].size == columns["logits_indices"].size == plan.rows.size:
            return InputBatch(**io.upload(columns))
        table.decoding = DecodeRows(plan, columns, table.sampling(plan), block_size)
    return table.decoding.batch(io)


_Columns = dict[str, npt.NDArray[Any]]


class DecodeRows:
    """The rows of a plan that computes one token of each and samples from all, and what its step reads. A plan after it
    that schedules the same finds all that brought up to date in place: then a step touches few arrays of the table's.

    Between such steps each row has one token that is not computed yet, the one it sampled last.
    """

    def __init__(self, plan: StepPlan, columns: _Columns, sampling: SamplingColumns, block_size: int) -> None:
        """columns: those of the plan's batch, contiguous. sampling: the rows' parameters. Both are written into."""
        self.sampling = sampling
        self.positions, self.seq_lens = columns["positions"], columns["seq_lens"]
        self._rows = plan.rows
        self._scheduled = _scheduled(plan)
        self._columns = columns
        self._token_ids, self._slot_mapping = columns["token_ids"], columns["slot_mapping"]
        self._output_index = sampling.output_index
        self._block_size = block_size
        self._counting = 0  # steps from here on in which each row takes the slot after its last one
        self._batch: InputBatch | None = None

    def batch(self, io: DeviceIO) -> InputBatch:
        """The batch of the step that has begun. io: the same each time."""
        if self._batch is None or not io.shares_memory:
            self._batch = InputBatch(**io.upload(self._columns))
        return self._batch

    def begin(self, plan: StepPlan, block_tables: IntColumn, num_blocks: IntColumn, max_model_len: int) -> bool:
        """Whether the plan, which releases and admits no rows, computes and samples the same again, and the table's
        rows have room for it. If not, these columns are of no more use."""
        if _scheduled(plan) != self._scheduled:
            return False
        if self._counting and not plan.edit_rows.size:
            self._counting -= 1
            return True
        indices, offsets = np.divmod(self.positions, self._block_size)
        longest = int(self.seq_lens.max())
        if longest >= max_model_len or (indices >= num_blocks[self._rows]).any():
            return False
        self._slot_mapping[:] = block_tables[self._rows, indices] * np.int64(self._block_size) + offsets
        tables = block_tables[self._rows, : -(-longest // self._block_size)]
        if tables.shape == self._columns["block_tables"].shape:
            self._columns["block_tables"][:] = tables
        else:
            self._columns["block_tables"], self._batch = tables, None
        self._counting = min(self._block_size - 1 - int(offsets.max()), max_model_len - 1 - longest)
        return True

    def advance(self, tokens: IntColumn) -> None:
        """The step is done: on to the rows' next tokens [R], which it sampled."""
        self._token_ids[:] = tokens
        self.positions += 1
        self.seq_lens += 1
        self._slot_mapping += 1
        self._output_index += 1


def _scheduled(plan: StepPlan) -> tuple[bytes, bytes, bytes]:
    return plan.rows.tobytes(), plan.num_tokens.tobytes(), plan.max_samples.tobytes()


def _columns(table: SequenceTable, plan: StepPlan, block_size: int) -> _Columns:
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
    return {
        "token_ids": table.token_ids[row_of_token, positions].astype(np.int64),
        "positions": positions,
        "slot_mapping": slot_mapping,
        "query_start_loc": query_start_loc,
        "seq_lens": seq_lens,
        "block_tables": table.block_tables[rows, :max_blocks],
        "logits_indices": logits_indices,
    }
