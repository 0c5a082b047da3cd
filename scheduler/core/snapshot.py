"""A picture of the core for inspection and tests: plain values that share nothing with it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.live import LiveSequence, Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSnapshot:
    """One live sequence.

    row: None while it waits. blocks: its block table. num_output_tokens: settled ones.
    num_computed_tokens: leading tokens whose KV is in the blocks, counting plans in flight.
    """

    sequence_id: int
    priority: int
    arrival: int
    queue: Queue
    row: int | None
    blocks: tuple[int, ...]
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_in_flight_tokens: int
    num_in_flight_plans: int
    num_preemptions: int

    @classmethod
    def of(cls, sequence: LiveSequence) -> SequenceSnapshot:
        """The sequence as it is now."""
        return cls(
            sequence_id=sequence.spec.sequence_id,
            priority=sequence.spec.priority,
            arrival=sequence.arrival,
            queue=sequence.queue,
            row=sequence.row if sequence.queue is Queue.RUNNING else None,
            blocks=tuple(sequence.blocks),
            num_prompt_tokens=len(sequence.spec.prompt),
            num_output_tokens=sequence.num_output,
            num_computed_tokens=sequence.num_computed,
            num_in_flight_tokens=sequence.num_in_flight_tokens,
            num_in_flight_plans=sequence.num_in_flight_plans,
            num_preemptions=sequence.num_preemptions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole core.

    plans_in_flight: step ids, oldest first. waiting, running: in order of service.
    num_deadlines: kept deadlines, those of ended sequences that are not cleaned up yet included.
    num_cached_blocks: unreferenced blocks that the prefix cache can find. num_indexed_blocks: all that it can find.
    block_references: per block, the number of block tables that name it.
    """

    epoch: int
    plans_in_flight: tuple[int, ...]
    waiting: tuple[SequenceSnapshot, ...]
    running: tuple[SequenceSnapshot, ...]
    num_live: int
    num_deadlines: int
    free_rows: tuple[int, ...]
    num_free_blocks: int
    num_cached_blocks: int
    num_indexed_blocks: int
    block_references: tuple[int, ...]
