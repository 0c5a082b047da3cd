"""The values of the step plane as the worker uses them: sessions, plans and results.

Columns are one-dimensional int32 arrays; columns that belong together have the same length. `worker.wire` builds these
from messages and checks all that can be checked without the rows' state; `worker.sequence_table` checks the rest.
Values are immutable by convention: nobody writes into an array after it was put into one of these.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntColumn = npt.NDArray[np.int32]
IdColumn = npt.NDArray[np.int64]
FloatColumn = npt.NDArray[np.float32]

PROTOCOL_VERSION = 3
"""Both ends of a stream must carry the same; it changes with every change of the step plane's meaning."""


@functools.cache
def no_ints() -> IntColumn:
    """An empty column."""
    return np.empty(0, np.int32)


@functools.cache
def no_floats() -> FloatColumn:
    """An empty column of numbers."""
    return np.empty(0, np.float32)


@functools.cache
def no_ids() -> IdColumn:
    """An empty column of token ids that index."""
    return np.empty(0, np.int64)


class PlanError(Exception):
    """A plan that breaks the contract. It names the column, the value found and what is allowed; the stream ends."""

    def __init__(self, column: str, value: object, limit: str) -> None:
        super().__init__(f"{column}: {value} is not allowed, {limit}")
        self.column = column
        self.value = value
        self.limit = limit


class RowFlag(enum.IntEnum):
    """What went wrong with a row of a step."""

    OK = 0
    NON_FINITE = 1
    DEAD_END = 2
    GRAMMAR_TOO_SLOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """The first message of a stream; fields as in the protocol."""

    protocol_version: int
    config_digest: bytes
    num_device_blocks: int
    num_host_blocks: int
    group_epoch: int
    num_rows: int
    max_num_batched_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What this worker can do. One KV group, one rank.

    block_size in tokens, bytes_per_block over all layers, window in tokens (0: none), num_host_blocks 0 if it cannot
    swap. max_num_seqs and max_num_batched_tokens bound a step; an Open that asks for more is refused.
    """

    num_layers: int
    block_size: int
    window: int
    bytes_per_block: int
    num_device_blocks: int
    num_host_blocks: int
    logits_width: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    architecture: str
    dtype: str
    tokenizer_digest: bytes
    weights_digest: bytes
    config_digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds that the columns of a stream's plans are checked against; blocks and rows lie in 0 .. limit - 1."""

    num_rows: int
    num_device_blocks: int
    num_host_blocks: int
    block_size: int
    logits_width: int
    max_model_len: int
    max_num_batched_tokens: int

    @property
    def max_blocks(self) -> int:
        """Entries of a full block table."""
        return -(-self.max_model_len // self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitRules:
    """What changes a row's logits before a token is drawn; fields as in the protocol, each neutral by default.

    masked_token_ids, bias_token_ids, allowed_token_ids: distinct ids int64; biases float32, one per bias_token_ids.
    """

    min_tokens: int = 0
    masked_token_ids: IdColumn = field(default_factory=no_ids)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_token_ids: IdColumn = field(default_factory=no_ids)
    biases: FloatColumn = field(default_factory=no_floats)
    allowed_token_ids: IdColumn = field(default_factory=no_ids)
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str = ""
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Resolved sampling parameters of a row. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    num_logprobs: None for none, 0 for the sampled token's, k for the k most likely besides. num_prompt_logprobs: the
    same for the prompt's tokens. The others are those of `LogitRules`.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    num_logprobs: int | None
    num_prompt_logprobs: int | None = None
    rules: LogitRules | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Gives a row to a sequence; all that the worker knows of it. output_index is that of the next token sampled;
    num_scored_tokens: prompt tokens, the first not counted, whose logprobs are not asked for again."""

    sequence_id: int
    row: int
    num_prompt_tokens: int
    token_ids: IntColumn
    blocks: IntColumn
    num_computed_tokens: int
    sampling: Sampling
    seed: int
    output_index: int
    num_scored_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopies:
    """One phase of block copies: block sources[i] to destinations[i]. Destinations are distinct and no sources."""

    sources: IntColumn
    destinations: IntColumn


NO_COPIES = BlockCopies(sources=no_ints(), destinations=no_ints())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step. Parts are applied in the order of the fields.

    swap_out copies device blocks to host blocks, swap_in host blocks to device blocks, copy_on_write device blocks to
    device blocks; each phase sees what the one before wrote.
    edit_*: entries to set in block tables. rows, num_tokens, max_samples: what to compute, one entry per row.
    """

    step_id: int
    released_rows: IntColumn
    swap_out: BlockCopies
    swap_in: BlockCopies
    copy_on_write: BlockCopies
    admissions: tuple[Admission, ...]
    edit_rows: IntColumn
    edit_indices: IntColumn
    edit_blocks: IntColumn
    rows: IntColumn
    num_tokens: IntColumn
    max_samples: IntColumn


def plain_plan(
    step_id: int,
    rows: Sequence[int],
    num_tokens: Sequence[int],
    max_samples: Sequence[int],
    admissions: Sequence[Admission] = (),
) -> StepPlan:
    """A plan that admits and computes, and releases, copies and edits nothing."""
    return StepPlan(
        step_id=step_id,
        released_rows=no_ints(),
        swap_out=NO_COPIES,
        swap_in=NO_COPIES,
        copy_on_write=NO_COPIES,
        admissions=tuple(admissions),
        edit_rows=no_ints(),
        edit_indices=no_ints(),
        edit_blocks=no_ints(),
        rows=np.array(rows, np.int32),
        num_tokens=np.array(num_tokens, np.int32),
        max_samples=np.array(max_samples, np.int32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """Raw logprobs of prompt tokens: num_scored of each scheduled row, then the columns of all of them, row by row.

    num_top: entries of each token in top_tokens and top_logprobs, most likely first; empty if none were asked for.
    """

    num_scored: IntColumn
    logprobs: FloatColumn
    num_top: IntColumn
    top_tokens: IntColumn
    top_logprobs: FloatColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The answer to a plan; columns are in the order of its scheduled rows.

    num_sampled: per row. tokens: row by row. logprobs, num_top: per token, or empty if no row asked.
    top_tokens, top_logprobs: token by token. flags: per row, or empty if all are OK. execute_ns: duration of the step.
    copy_ns: the part of it that block copies took, 0 if there were none. scores: None if no prompt token was scored.
    """

    step_id: int
    num_sampled: IntColumn
    tokens: IntColumn
    logprobs: FloatColumn
    num_top: IntColumn
    top_tokens: IntColumn
    top_logprobs: FloatColumn
    flags: IntColumn
    execute_ns: int
    copy_ns: int
    scores: PromptScores | None = None
