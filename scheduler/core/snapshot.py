"""A picture of the core for inspection and tests: plain values that share nothing with it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.history import Decision
from scheduler.core.live import LiveSequence, Queue
from scheduler.core.places import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSnapshot:
    """One live sequence.

    priority: as it is served; 0 for all under the policy "fcfs".
    row: None while it waits. blocks: its block table. num_output_tokens: settled ones.
    num_computed_tokens: leading tokens whose KV is in the blocks, counting plans in flight.
    num_host_blocks: blocks of the host pool that hold its KV while it is swapped.
    num_siblings: other sequences of its request that will be admitted together with it.
    leader: the sequence of its request that is admitted first or computes their prompt; None if it waits for none.
    history: decisions about it, oldest first, less the num_dropped_decisions oldest.
    """

    sequence_id: int
    tenant: str
    priority: int
    arrival: int
    queue: Queue
    row: int | None
    blocks: tuple[int, ...]
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_computed_tokens: int
    num_in_flight_tokens: int
    num_in_flight_plans: int
    num_preemptions: int
    num_overtaken: int
    num_host_blocks: int
    num_siblings: int
    leader: int | None
    history: tuple[Decision, ...]
    num_dropped_decisions: int

    @classmethod
    def of(cls, sequence: LiveSequence) -> SequenceSnapshot:
        """The sequence as it is now."""
        spec, group = sequence.spec, sequence.group
        num_computed, num_in_flight_tokens, num_in_flight_plans = sequence.progress
        together = [] if group is None else group.waiting
        follows = group is not None and sequence in (*together[1:], *group.pending)
        return cls(
            sequence_id=spec.sequence_id,
            tenant=spec.tenant,
            priority=sequence.key[0],
            arrival=sequence.arrival,
            queue=sequence.queue,
            row=sequence.row if sequence.queue is Queue.RUNNING else None,
            blocks=tuple(sequence.blocks),
            num_prompt_tokens=len(spec.prompt),
            num_output_tokens=sequence.num_output,
            max_tokens=sequence.max_len - len(spec.prompt),
            num_computed_tokens=num_computed,
            num_in_flight_tokens=num_in_flight_tokens,
            num_in_flight_plans=num_in_flight_plans,
            num_preemptions=sequence.num_preemptions,
            num_overtaken=sequence.num_overtaken,
            num_host_blocks=len(sequence.host_blocks),
            num_siblings=len(together) - 1 if together[:1] == [sequence] else 0,
            leader=group.leader.spec.sequence_id if group is not None and follows else None,
            history=sequence.history.entries,
            num_dropped_decisions=sequence.history.num_dropped,
        )

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that the next plan may compute; 0 while the next one is not sampled or the last one is in flight."""
        planned = self.num_output_tokens + self.num_in_flight_tokens
        return 0 if planned >= self.max_tokens else self.num_prompt_tokens + planned - self.num_computed_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole core.

    plans_in_flight: step ids, oldest first. waiting, running, swapped: in order of service.
    num_deadlines: kept deadlines, those of ended sequences that are not cleaned up yet included.
    suspects: sequences that run alone, one after the other, because workers died while they were in flight.
    num_cached_blocks: unreferenced blocks that the prefix cache can find. num_indexed_blocks: all that it can find.
    block_references: per block, the number of block tables that name it, and of pins.
    pinned_blocks: blocks that a fork will copy, a reference each.
    """

    epoch: int
    plans_in_flight: tuple[int, ...]
    waiting: tuple[SequenceSnapshot, ...]
    running: tuple[SequenceSnapshot, ...]
    swapped: tuple[SequenceSnapshot, ...] = ()
    num_live: int
    suspects: tuple[int, ...]
    num_deadlines: int
    free_rows: tuple[int, ...]
    num_free_blocks: int
    num_cached_blocks: int
    num_indexed_blocks: int
    num_host_blocks: int = 0
    num_free_host_blocks: int = 0
    block_references: tuple[int, ...]
    pinned_blocks: tuple[int, ...] = ()

    @classmethod
    def of(cls, places: Places, *, epoch: int, num_deadlines: int) -> Snapshot:
        """The core as it is now."""
        pool = places.blocks.pool
        return cls(
            epoch=epoch,
            plans_in_flight=tuple(plan.step_id for plan in places.in_flight),
            waiting=tuple(SequenceSnapshot.of(sequence) for sequence in places.waiting),
            running=tuple(SequenceSnapshot.of(sequence) for sequence in places.running),
            swapped=tuple(SequenceSnapshot.of(sequence) for sequence in places.swapped),
            num_live=len(places.live),
            suspects=tuple(sequence.spec.sequence_id for sequence in places.suspects),
            num_deadlines=num_deadlines,
            free_rows=tuple(sorted(places.free_rows)),
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_indexed_blocks=len(places.blocks.prefix_cache),
            block_references=tuple(pool.references(block) for block in range(pool.num_blocks)),
            pinned_blocks=tuple(group.pinned for group in places.forking if group.pinned is not None),
            num_host_blocks=places.host.num_blocks,
            num_free_host_blocks=places.host.num_free,
        )
