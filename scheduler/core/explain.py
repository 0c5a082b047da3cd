"""Why a sequence does not compute its next tokens: the first constraint in the order in which `schedule` looks at them,
and the numbers that it compares.

Nothing is remembered from the last call of `schedule`: an explanation is worked out anew from the state as it is, so it
is true for the next one, as far as running sequences do not take blocks or tokens first.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass

from scheduler.core.live import Queue, blocks_for
from scheduler.core.probe import probe_prefix
from scheduler.core.scheduler import OVERTAKE_WINDOW, Scheduler
from scheduler.core.snapshot import SequenceSnapshot, Snapshot


class Constraint(enum.Enum):
    """What holds a sequence up. NONE: nothing, it is part of the next plan.

    SWAPPED: sequences in host memory come first. QUEUE: one that is served before it is held up and may not be passed.
    TOKEN_BUDGET: others use it up. RESULT: that of a plan it is part of is not back. ROWS, BLOCKS: too few are there.
    FORK: it goes on together with a sibling that comes first, or computes their prompt. SUSPECTS: workers died, and
    sequences that may have killed them run alone first.
    """

    NONE = "none"
    SWAPPED = "swapped"
    QUEUE = "queue"
    ROWS = "rows"
    TOKEN_BUDGET = "token_budget"
    RESULT = "result"
    BLOCKS = "blocks"
    FORK = "fork"
    SUSPECTS = "suspects"


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
    """position: place in its queue, 0 is the head. root: with QUEUE, SWAPPED, FORK and SUSPECTS, the explanation of the
    sequence that it waits for. awaited_step: whose result must come before anything is planned, because as many plans
    are in flight as may be."""

    sequence: SequenceSnapshot
    position: int
    constraint: Constraint
    needs: Needs
    root: Explanation | None = None
    awaited_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A sequence with blocks; num_exclusive of them would be available if it ended."""

    sequence: SequenceSnapshot
    num_exclusive: int


def explain(core: Scheduler, sequence_id: int) -> Explanation | None:
    """Explains a live sequence; None for another id. Takes time in proportion to sequences and blocks."""
    return _Explainer(core).explain(sequence_id)


def block_holders(picture: Snapshot, limit: int) -> tuple[list[Holder], int]:
    """The sequences with the most blocks, largest first, and how many sequences have any."""
    holding = [sequence for sequence in picture.running if sequence.blocks]
    largest = sorted(holding, key=lambda sequence: -len(sequence.blocks))[:limit]
    holders = [Holder(sequence=sequence, num_exclusive=_num_exclusive(picture, sequence)) for sequence in largest]
    return holders, len(holding)


class _Explainer:
    """The rules of `Scheduler.schedule`, asked about one sequence at a time."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self._config = core.config
        self._picture = core.snapshot()
        self._shares = _token_shares(self._picture, core.config.max_num_batched_tokens)

    def explain(self, sequence_id: int) -> Explanation | None:
        picture = self._picture
        for queue in (picture.running, picture.swapped, picture.waiting):
            for position, sequence in enumerate(queue):
                if sequence.sequence_id == sequence_id:
                    return self._explain(sequence, position)
        return None

    def _explain(self, sequence: SequenceSnapshot, position: int) -> Explanation:
        root = None
        if sequence.queue is Queue.RUNNING:
            needs = self._needs_running(sequence)
            constraint = _constraint_running(sequence, needs)
        else:
            needs = self._needs_admission(sequence)
            constraint = self._constraint_alone(sequence, needs)
            if (first := self._first_in_the_way(sequence, position)) is not None:
                constraint, root = first
        suspects = self._picture.suspects
        if sequence.leader is not None:
            constraint, root = Constraint.FORK, self.explain(sequence.leader)
        elif suspects and sequence.sequence_id != suspects[0]:
            constraint, root = Constraint.SUSPECTS, self.explain(suspects[0])
        return Explanation(
            sequence=sequence,
            position=position,
            constraint=constraint,
            needs=needs,
            root=root,
            awaited_step=self._awaited_step(),
        )

    def _awaited_step(self) -> int | None:
        # More than two are in flight only where plans travel together, and then there are two messages of them.
        in_flight = self._picture.plans_in_flight
        return in_flight[0] if len(in_flight) >= min(2, self._config.max_plans_in_flight) else None

    def _first_in_the_way(self, sequence: SequenceSnapshot, position: int) -> tuple[Constraint, Explanation] | None:
        """The sequence that must be served before this one and cannot be, if there is one."""
        picture = self._picture
        if sequence.queue is Queue.SWAPPED:
            if picture.waiting and picture.waiting[0].priority < sequence.priority:
                return Constraint.QUEUE, self._alone(picture.waiting[0], 0)
            return self._first_held_up(picture.swapped[:position], Constraint.QUEUE, may_pass=0)
        swapped = tuple(other for other in picture.swapped if other.priority <= sequence.priority)
        held_up = self._first_held_up(swapped, Constraint.SWAPPED, may_pass=0)
        return held_up or self._first_held_up(picture.waiting[:position], Constraint.QUEUE, may_pass=OVERTAKE_WINDOW)

    def _first_held_up(
        self, ahead: tuple[SequenceSnapshot, ...], constraint: Constraint, *, may_pass: int
    ) -> tuple[Constraint, Explanation] | None:
        """may_pass: how many that lack blocks others may pass, each as often as it may be overtaken."""
        num_passed = 0
        for position, other in enumerate(ahead):
            if other.leader is not None:
                continue
            explained = self._alone(other, position)
            if explained.constraint is Constraint.NONE:
                continue
            passable = explained.constraint is Constraint.BLOCKS and other.num_overtaken < self._config.max_overtakes
            if not passable or num_passed == may_pass:
                return constraint, explained
            num_passed += 1
        return None

    def _alone(self, sequence: SequenceSnapshot, position: int) -> Explanation:
        """What holds a sequence up, whoever is served before it."""
        needs = self._needs_admission(sequence)
        return Explanation(
            sequence=sequence,
            position=position,
            constraint=self._constraint_alone(sequence, needs),
            needs=needs,
            awaited_step=self._awaited_step(),
        )

    def _constraint_alone(self, sequence: SequenceSnapshot, needs: Needs) -> Constraint:
        if needs.tokens_available <= 0:
            return Constraint.TOKEN_BUDGET
        if sequence.num_in_flight_plans:
            return Constraint.RESULT
        if self._may_preempt(sequence, needs):
            return Constraint.NONE
        if needs.rows_free < needs.rows_needed:
            return Constraint.ROWS
        if needs.blocks_free + needs.blocks_evictable - needs.blocks_needed < needs.watermark:
            return Constraint.BLOCKS
        return Constraint.NONE

    def _may_preempt(self, sequence: SequenceSnapshot, needs: Needs) -> bool:
        """Whether it is the head, and running sequences of lower priority hold all that it lacks."""
        if self._picture.waiting[:1] != (sequence,):
            return False
        if self._picture.swapped and self._picture.swapped[0].priority <= sequence.priority:
            return False
        victims = [other for other in self._picture.running if other.priority > sequence.priority]
        named = Counter(block for victim in victims for block in victim.blocks)
        hits = self._hits(sequence)  # what it finds, it needs nobody to free
        freed = sum(
            self._picture.block_references[block] == count for block, count in named.items() if block not in hits
        )
        watermark = needs.watermark if len(victims) < len(self._picture.running) else 0
        available = needs.blocks_free + needs.blocks_evictable + freed - watermark
        return (
            bool(victims) and needs.blocks_needed <= available and needs.rows_needed <= needs.rows_free + len(victims)
        )

    def _needs_running(self, sequence: SequenceSnapshot) -> Needs:
        wanted = sequence.num_computed_tokens + sequence.num_uncomputed_tokens
        needed = max(blocks_for(wanted, self._config.block_size) - len(sequence.blocks), 0)
        return self._needs(needed=needed, hits=(), rows=0, tokens=self._shares[sequence.sequence_id])

    def _needs_admission(self, sequence: SequenceSnapshot) -> Needs:
        hits = self._hits(sequence)
        num_tokens = sequence.num_prompt_tokens + sequence.num_output_tokens
        needed = blocks_for(num_tokens, self._config.block_size) - len(hits) + sequence.num_siblings
        left = self._config.max_num_batched_tokens - sum(self._shares.values())
        return self._needs(needed=needed, hits=hits, rows=1 + sequence.num_siblings, tokens=left)

    def _hits(self, sequence: SequenceSnapshot) -> tuple[int, ...]:
        """Blocks that it would find in the prefix cache if it were admitted now."""
        live = self._core.sequence(sequence.sequence_id)
        assert live is not None, "it is in the snapshot"
        return probe_prefix(self._core, live.token_ids, live.spec.cache_salt).blocks

    def _needs(self, *, needed: int, hits: tuple[int, ...], rows: int, tokens: int) -> Needs:
        pool, picture = self._core.blocks.pool, self._picture
        return Needs(
            blocks_needed=needed,
            blocks_cached=len(hits),
            blocks_free=picture.num_free_blocks,
            blocks_evictable=picture.num_cached_blocks - sum(pool.is_cached(block) for block in hits),
            watermark=self._config.watermark if picture.running else 0,
            rows_needed=rows,
            rows_free=len(picture.free_rows),
            rows_total=self._config.max_num_seqs,
            tokens_available=tokens,
            token_budget=self._config.max_num_batched_tokens,
        )


def _constraint_running(sequence: SequenceSnapshot, needs: Needs) -> Constraint:
    if sequence.num_uncomputed_tokens == 0:
        return Constraint.RESULT
    return Constraint.NONE if needs.tokens_available > 0 else Constraint.TOKEN_BUDGET


def _token_shares(picture: Snapshot, budget: int) -> dict[int, int]:
    """What the next plan computes for each running sequence: single tokens first, then prompts in order of service."""
    lacking = {sequence.sequence_id: sequence.num_uncomputed_tokens for sequence in picture.running}
    prompts_left = {
        sequence.sequence_id: sequence.num_computed_tokens < sequence.num_prompt_tokens for sequence in picture.running
    }
    for sequence in picture.running:
        if sequence.leader is not None:  # it forks, and computes one token, once the whole prompt is planned
            lacking[sequence.sequence_id] = 0 if prompts_left.get(sequence.leader, False) else 1
    left = budget - sum(count == 1 for count in lacking.values())
    shares = {}
    for sequence_id, count in lacking.items():
        shares[sequence_id] = count if count <= 1 else min(count, left)
        left -= shares[sequence_id] if count > 1 else 0
    return shares


def _num_exclusive(picture: Snapshot, sequence: SequenceSnapshot) -> int:
    """Blocks that would be available if the sequence gave its own back."""
    return sum(picture.block_references[block] == 1 for block in sequence.blocks)
