"""Why a sequence does not compute its next tokens: the first constraint in the order in which `schedule` looks at them,
and the numbers that it compares.

Nothing is remembered from the last call of `schedule`: an explanation is worked out anew from the state as it is, so it
is true for the next one, as far as running sequences do not take blocks or tokens first.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from scheduler.core.live import Queue, blocks_for
from scheduler.core.probe import PrefixProbe, probe_prefix
from scheduler.core.scheduler import Scheduler
from scheduler.core.snapshot import SequenceSnapshot, Snapshot


_NO_HITS = PrefixProbe(blocks=(), num_cached_tokens=0, num_cacheable_tokens=0)


class Constraint(enum.Enum):
    """What holds a sequence up. NONE: nothing, it is part of the next plan.

    SWAPPED: sequences in host memory come first. QUEUE: the head of its queue is held up. ROWS: all are held.
    TOKEN_BUDGET: others use it up. RESULT: that of a plan it is part of is not back. BLOCKS: too few are available.
    FORK: a sibling computes their prompt.
    """

    NONE = "none"
    SWAPPED = "swapped"
    QUEUE = "queue"
    ROWS = "rows"
    TOKEN_BUDGET = "token_budget"
    RESULT = "result"
    BLOCKS = "blocks"
    FORK = "fork"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a sequence needs against what there is.

    blocks_needed: for all its known tokens, less blocks_cached, which it would find in the prefix cache, and with those
    of siblings. blocks_evictable: cached ones of the pool that it would not use itself. rows_needed: with siblings'.
    tokens_available: of the next plan, after what sequences before it take.
    """

    blocks_needed: int
    blocks_cached: int
    blocks_free: int
    blocks_evictable: int
    watermark: int
    rows_needed: int
    rows_free: int
    rows_total: int
    tokens_available: int
    token_budget: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """position: place in its queue, 0 is the head. root: with QUEUE, what holds the head up."""

    sequence: SequenceSnapshot
    position: int
    constraint: Constraint
    needs: Needs
    root: Explanation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A sequence with blocks; num_exclusive of them would be available if it ended."""

    sequence: SequenceSnapshot
    num_exclusive: int


def explain(core: Scheduler, sequence_id: int) -> Explanation | None:
    """Explains a live sequence; None for another id. Takes time in proportion to sequences and blocks."""
    picture = core.snapshot()
    for queue in (picture.running, picture.swapped, picture.waiting):
        for position, sequence in enumerate(queue):
            if sequence.sequence_id == sequence_id:
                return _explain(core, picture, sequence, position)
    return None


def block_holders(picture: Snapshot, limit: int) -> tuple[list[Holder], int]:
    """The sequences with the most blocks, largest first, and how many sequences have any."""
    holding = [sequence for sequence in picture.running if sequence.blocks]
    largest = sorted(holding, key=lambda sequence: -len(sequence.blocks))[:limit]
    references = picture.block_references
    return [
        Holder(sequence=sequence, num_exclusive=sum(references[block] == 1 for block in sequence.blocks))
        for sequence in largest
    ], len(holding)


def _explain(core: Scheduler, picture: Snapshot, sequence: SequenceSnapshot, position: int) -> Explanation:
    shares = _token_shares(picture, core.config.max_num_batched_tokens)
    if sequence.queue is Queue.RUNNING:
        needs = _needs_running(core, picture, sequence, shares[sequence.sequence_id])
        return Explanation(
            sequence=sequence, position=position, constraint=_constraint_running(sequence, needs), needs=needs
        )
    tokens = core.config.max_num_batched_tokens - sum(shares.values())
    needs = _needs_admission(core, picture, sequence, tokens)
    constraint = _constraint_admission(picture, sequence, needs)
    root = None
    if position > 0:
        head = _explain(core, picture, (picture.waiting if sequence.queue is Queue.WAITING else picture.swapped)[0], 0)
        if head.constraint is not Constraint.NONE and not _may_be_passed(core, head):
            constraint, root = Constraint.QUEUE, head
    return Explanation(sequence=sequence, position=position, constraint=constraint, needs=needs, root=root)


def _may_be_passed(core: Scheduler, head: Explanation) -> bool:
    """Whether those behind it that fit may be admitted before it."""
    return head.constraint is Constraint.BLOCKS and head.sequence.num_overtaken < core.config.max_overtakes


def _constraint_running(sequence: SequenceSnapshot, needs: Needs) -> Constraint:
    if sequence.awaits_fork:
        return Constraint.FORK
    if sequence.num_uncomputed_tokens == 0:
        return Constraint.RESULT
    return Constraint.NONE if needs.tokens_available else Constraint.TOKEN_BUDGET


def _constraint_admission(picture: Snapshot, sequence: SequenceSnapshot, needs: Needs) -> Constraint:
    if sequence.queue is Queue.WAITING and picture.swapped:
        return Constraint.SWAPPED
    if needs.rows_free < needs.rows_needed:
        return Constraint.ROWS
    if needs.tokens_available <= 0:
        return Constraint.TOKEN_BUDGET
    if sequence.num_in_flight_plans:
        return Constraint.RESULT
    if needs.blocks_free + needs.blocks_evictable - needs.blocks_needed < needs.watermark:
        return Constraint.BLOCKS
    return Constraint.NONE


def _token_shares(picture: Snapshot, budget: int) -> dict[int, int]:
    """What the next plan computes for each running sequence: single tokens first, then prompts in order of service."""
    lacking = {sequence.sequence_id: sequence.num_uncomputed_tokens for sequence in picture.running}
    left = budget - sum(count == 1 for count in lacking.values())
    shares = {}
    for sequence_id, count in lacking.items():
        shares[sequence_id] = count if count <= 1 else min(count, left)
        left -= shares[sequence_id] if count > 1 else 0
    return shares


def _needs_running(core: Scheduler, picture: Snapshot, sequence: SequenceSnapshot, share: int) -> Needs:
    total = blocks_for(sequence.num_computed_tokens + share, core.config.block_size)
    return _needs(core, picture, needed=max(total - len(sequence.blocks), 0), hits=_NO_HITS, rows=0, tokens=share)


def _needs_admission(core: Scheduler, picture: Snapshot, sequence: SequenceSnapshot, tokens: int) -> Needs:
    known = sequence.num_prompt_tokens + sequence.num_output_tokens
    hits = _NO_HITS
    if sequence.queue is Queue.WAITING:
        live = core._live[sequence.sequence_id]
        hits = probe_prefix(core, live.token_ids, live.spec.cache_salt)
    needed = blocks_for(known, core.config.block_size) - len(hits.blocks) + sequence.num_siblings
    return _needs(core, picture, needed=needed, hits=hits, rows=1 + sequence.num_siblings, tokens=tokens)


def _needs(core: Scheduler, picture: Snapshot, *, needed: int, hits: PrefixProbe, rows: int, tokens: int) -> Needs:
    return Needs(
        blocks_needed=needed,
        blocks_cached=len(hits.blocks),
        blocks_free=picture.num_free_blocks,
        blocks_evictable=picture.num_cached_blocks - sum(core.blocks.pool.is_cached(block) for block in hits.blocks),
        watermark=core.config.watermark if picture.running else 0,
        rows_needed=rows,
        rows_free=len(picture.free_rows),
        rows_total=core.config.max_num_seqs,
        tokens_available=tokens,
        token_budget=core.config.max_num_batched_tokens,
    )
