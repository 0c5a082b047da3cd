"""What the scheduler says about requests and blocks.

Field by field the meaning is that of protos/octavo/serving/v1/admin.proto; states and constraints are the protos' names
without their prefix, in lower case.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInfo:
    """One sequence of a live request. row: None unless it runs."""

    request_id: str
    index: int
    state: str
    queue_position: int
    age_seconds: float
    tenant: str
    priority: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    computed_tokens: int
    blocks: int
    host_blocks: int
    preemptions: int
    overtaken: int
    row: int | None
    sequence_id: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceExplanation:
    """sentence: what the sequence does or lacks. history: what was decided about it, in words, oldest first."""

    sentence: str
    constraint: str
    sequence: SequenceInfo
    history: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHolder:
    """A sequence that holds blocks."""

    request_id: str
    index: int
    blocks: int
    exclusive_blocks: int
    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a request is where it is. holders: the largest of total_holders."""

    summary: str
    sequences: tuple[SequenceExplanation, ...]
    holders: tuple[BlockHolder, ...]
    total_holders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo:
    """One block of the KV cache. users: (request id, index, place in the block table) of the first eight."""

    block: int
    state: str
    references: int
    indexed: bool
    tokens: int
    users: tuple[tuple[str, int, int], ...]
    tenant: str
    cache_salt: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixDrop:
    """What `drop_prefix` did."""

    dropped_blocks: int
    kept_blocks: int
