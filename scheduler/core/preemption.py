"""Preempts running sequences for others: for one that needs a block of a dry pool, and for an urgent one that waits.

Who it is, and whether it is swapped or computed anew, says the `PreemptionPolicy`; `Places` makes the move.
"""

from __future__ import annotations

from scheduler.core.config import CoreConfig
from scheduler.core.live import LiveSequence, Queue
from scheduler.core.places import Places
from scheduler.core.plan_builder import PlanBuilder
from scheduler.core.preemption_policy import VICTIM_WINDOW, Candidate, PreemptionPolicy


class Preemption:
    """policy: weighs the ways."""

    def __init__(self, config: CoreConfig, places: Places) -> None:
        self.policy = PreemptionPolicy(
            config.preemption_mode, block_size=config.block_size, bytes_per_block=config.bytes_per_block
        )
        self._config = config
        self._at = places

    def make_room_for_urgent(self, plan: PlanBuilder) -> None:
        """The head of the waiting queue takes the rows and blocks of running sequences of lower priority, the last of
        them first, if that lets it into this very plan."""
        if not self._at.waiting or not self._at.running or self._at.waiting[0].key[0] >= self._at.running[-1].key[0]:
            return
        head = self._at.waiting[0]
        if head.num_in_flight_plans:
            return
        victims = [sequence for sequence in self._at.running if sequence.key[0] > head.key[0]]
        num_spared = len(self._at.running) - len(victims)
        chunks = sum(sequence.num_uncomputed for sequence in self._at.catching_up if sequence.key[0] <= head.key[0])
        if num_spared + chunks >= self._config.max_num_batched_tokens:
            return
        num_more = self._at.num_siblings(head)
        watermark = self._config.watermark if num_spared else 0
        lacks_rows = len(self._at.free_rows) + len(victims) <= num_more
        if lacks_rows or self._at.blocks.shortage(head, watermark, num_more, victims) > 0:
            return
        while victims and (
            len(self._at.free_rows) <= num_more or self._at.blocks.shortage(head, self._at.watermark, num_more) > 0
        ):
            victim = victims.pop()
            if victim.queue is Queue.RUNNING:  # not parted from a group by an earlier one
                plan.drop_blocks(victim.row)
                self._at.preempt(victim, swap=self.policy.choose([self._candidate(victim)], self._at.host.num_free)[1])

    def preempt_for(self, sequence: LiveSequence) -> None:
        """Preempts one of the last in order of service, none that comes before `sequence`."""
        candidates: list[Candidate] = []
        for other in reversed(self._at.running):
            if (
                other.key < sequence.key
                or other.key[0] < self._at.running[-1].key[0]
                or len(candidates) == VICTIM_WINDOW
            ):
                break
            candidates.append(self._candidate(other))
        candidates.reverse()
        victim, swap = self.policy.choose(candidates, self._at.host.num_free)
        self._at.preempt(victim.sequence, swap=swap)

    def _candidate(self, sequence: LiveSequence) -> Candidate:
        return Candidate(sequence, sequence.progress[0], self._num_freed(sequence))

    def _num_freed(self, sequence: LiveSequence) -> int:
        """Blocks that become available if this one loses its own."""
        return sum(self._at.blocks.pool.references(block) == 1 for block in sequence.blocks)
