"""Where every live sequence is, and the moves from one place to another. Nothing here decides anything.

A move keeps the books: rows, blocks, host blocks, what the next plan must release or save, and which plans in flight
still compute for whom. The `Scheduler` decides which sequence moves and when.
"""

from __future__ import annotations

from collections import deque

from scheduler.core.block_manager import BlockManager
from scheduler.core.config import CoreConfig
from scheduler.core.counters import Counters
from scheduler.core.decode_batch import DecodeBatch
from scheduler.core.forks import Group
from scheduler.core.history import DecisionKind
from scheduler.core.host_pool import HostPool
from scheduler.core.live import FINISHED, RUNNING, SWAPPED, WAITING, LiveSequence, blocks_for
from scheduler.core.plan_builder import PlanInFlight, PlannedRow
from scheduler.core.queues import OrderedQueue, WaitingQueue
from scheduler.core.result import End, EndReason


class Places:
    """The state that sequences share.

    live: by sequence id. waiting, running, swapped: each live sequence is in exactly one.
    decoding, catching_up, forking: what running sequences do, unless all their tokens are planned.
    suspects: those that must run alone, because workers died while they were in flight; see `suspects.py`.
    survivors: those that were in flight at a worker's death, but not at enough of them to be suspects.
    joining, copied: until the plan at hand is sent: who joins the decode batch then, and whose pins end then.
    in_flight: plans whose results are not back, oldest first.
    released_rows, swap_out: for the next plan: rows that were freed, and (device, host) blocks to save before anything
    overwrites them.
    """

    def __init__(self, config: CoreConfig, counters: Counters) -> None:
        self.config = config
        self.counters = counters
        self.blocks = BlockManager(config)
        self.host = HostPool(config.num_host_blocks)
        self.live: dict[int, LiveSequence] = {}
        self.waiting = WaitingQueue()
        self.running = OrderedQueue()
        self.swapped = OrderedQueue()
        self.decoding = DecodeBatch(config.block_size, config.max_num_seqs)
        self.catching_up = OrderedQueue()
        self.forking: list[Group] = []
        self.suspects = OrderedQueue()
        self.survivors = OrderedQueue()
        self.joining: list[LiveSequence] = []
        self.copied: list[Group] = []
        self.in_flight: deque[PlanInFlight] = deque()
        self.free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self.released_rows: list[int] = []
        self.swap_out: list[tuple[int, int]] = []
        self.next_step_id = 1

    def note(self, sequence: LiveSequence, kind: DecisionKind, **numbers: int) -> None:
        sequence.history.record(self.next_step_id, kind, numbers)

    @property
    def watermark(self) -> int:
        """Blocks that an admission must leave; none if nothing runs, because then nothing else can free any."""
        return self.config.watermark if self.running else 0

    def num_siblings(self, sequence: LiveSequence) -> int:
        """Sequences that must be admitted together with this one."""
        return len(sequence.group.waiting) - 1 if sequence.group is not None and sequence.group.waiting else 0

    def pop_settled(self, tokens: tuple[int, ...]) -> None:
        self.in_flight.popleft()
        self.decoding.settle(tokens)

    def end(self, sequence: LiveSequence, reason: EndReason) -> End:
        if sequence.queue is RUNNING:
            self.settle_place(sequence)
            if reason is not EndReason.NON_FINITE:
                self.blocks.index(sequence, sequence.num_computed)
            self.leave_row(sequence)
        elif sequence.queue is SWAPPED:
            self.swapped.remove(sequence)
            self.drop_host_blocks(sequence)
        else:
            self.waiting.remove(sequence)
            if sequence.group is not None:
                sequence.group.drop_waiting(sequence)
        self.forget_deaths(sequence)
        if reason is EndReason.NON_FINITE:
            sequence.num_void_plans = sequence.num_in_flight_plans  # that its rows in those fail too says nothing new
        sequence.queue = FINISHED
        sequence.group = None  # it names its leader: a cycle that only the garbage collector would end
        del self.live[sequence.spec.sequence_id]
        self.counters.finished += 1
        return End(
            sequence_id=sequence.spec.sequence_id,
            reason=reason,
            num_output_tokens=sequence.num_output,
            stop_token_id=sequence.token_ids[-1] if reason is EndReason.STOP else None,
        )

    def forget_deaths(self, sequence: LiveSequence) -> None:
        """Takes a sequence off the books of those that were in flight at deaths."""
        for queue in (self.suspects, self.survivors):
            if queue and sequence in queue:
                queue.remove(sequence)

    def preempt(self, sequence: LiveSequence, *, swap: bool, trusted: bool = True) -> None:
        """Takes row and blocks from a running sequence; it waits again, at its place in the order of service.

        A token of it that is in flight is kept when its result comes, and only then can it be admitted again. trusted:
        whether its KV may be found by others.
        """
        self.settle_place(sequence)
        if trusted:
            self.blocks.index(sequence, sequence.num_computed)
        num_blocks = blocks_for(sequence.num_computed, self.config.block_size)
        host_blocks = self.host.take(num_blocks) if swap else None
        self.counters.preemptions += 1
        sequence.num_preemptions += 1
        if host_blocks is None:
            self.note(sequence, DecisionKind.PREEMPTED, tokens=sequence.num_computed, blocks=len(sequence.blocks))
            self.leave_row(sequence)
            self.requeue(sequence)
            return
        self.note(sequence, DecisionKind.SWAPPED_OUT, tokens=sequence.num_computed, blocks=num_blocks)
        self.counters.preemptions_swap += 1
        self.swap_out += zip(sequence.blocks, host_blocks, strict=False)
        sequence.host_blocks = host_blocks
        self.leave_row(sequence)
        sequence.queue = SWAPPED
        self.swapped.insert(sequence)

    def requeue(self, sequence: LiveSequence) -> None:
        sequence.queue = WAITING
        sequence.num_computed = 0
        self.waiting.insert(sequence)

    def settle_place(self, sequence: LiveSequence) -> None:
        """Takes a running sequence out of whatever it is doing, before it leaves its row."""
        group = sequence.group
        if sequence.decoding is not None:
            self.stop_decoding(sequence)
        elif sequence in self.catching_up:
            self.catching_up.remove(sequence)
        elif group is not None and sequence in group.pending:
            group.pending.remove(sequence)
            if not group.pending:
                self.forking.remove(group)
                self.unpin(group)
        if group is not None and group.pending and sequence is group.leader and not group.ready:
            self.part(group)

    def stop_decoding(self, sequence: LiveSequence, heir: LiveSequence | None = None) -> None:
        """Takes a member out of the decode batch; plans in flight that compute a token of it note that it is gone.

        heir: who joins in its place, if anybody does."""
        sequence_id, slot = sequence.spec.sequence_id, sequence.slot
        joined_at, start = sequence.joined_at, sequence.num_computed - sequence.joined_at
        moved = self.decoding.leave(sequence, heir)
        for plan in self.in_flight:
            if plan.clock >= joined_at:
                place = plan.moved.pop(sequence_id, slot)
                plan.gone[place] = PlannedRow(sequence, start + plan.clock, 1, True)
            if moved is not None and plan.clock >= moved.joined_at:
                plan.moved.setdefault(moved.spec.sequence_id, len(self.decoding))  # the slot it had

    def leave_row(self, sequence: LiveSequence) -> None:
        self.running.remove(sequence)
        if sequence.num_computed > 0:  # else its row is reserved for a fork, and the worker knows nothing of it
            self.released_rows.append(sequence.row)
        self.free_rows.append(sequence.row)
        sequence.row = -1
        self.blocks.release(sequence)

    def drop_host_blocks(self, sequence: LiveSequence) -> None:
        """Gives up a sequence's KV on the host; a copy into it that is not sent yet is not sent at all."""
        dropped, sequence.host_blocks = sequence.host_blocks, []
        self.swap_out = [pair for pair in self.swap_out if pair[1] not in dropped]
        self.host.release(dropped)

    def reserve_forks(self, group: Group, own_blocks: list[int]) -> None:
        """Gives the leader's siblings their rows and blocks, before the leader takes its row."""
        leader = group.leader
        group.pending, group.waiting = group.waiting[1:], []
        group.ready = False
        prefix = len(leader.spec.prompt) - 1
        if prefix % self.config.block_size:
            group.pinned = leader.blocks[prefix // self.config.block_size]
            self.blocks.pin(group.pinned)
        for child, block in zip(group.pending, own_blocks, strict=True):
            self.waiting.remove(child)
            self.blocks.fork(leader, child, block)
            child.nodes = list(leader.nodes)
            child.queue = RUNNING
            child.row = self.free_rows.pop()
            self.running.insert(child)
        self.forking.append(group)

    def part(self, group: Group) -> None:
        """The leader lost its blocks before its prompt was planned: its siblings wait as ordinary sequences."""
        self.forking.remove(group)
        pending, group.pending = group.pending, []
        for child in pending:
            self.leave_row(child)
            self.requeue(child)
        self.unpin(group)

    def unpin(self, group: Group) -> None:
        if group.pinned is not None:
            self.blocks.unpin(group.pinned)
            group.pinned = None

    def forget_worker_state(self, num_blocks: int, num_host_blocks: int) -> None:
        self.in_flight.clear()
        self.decoding = DecodeBatch(self.config.block_size, self.config.max_num_seqs)
        self.catching_up.clear()
        for group in self.forking:
            group.pending, group.pinned = [], None
        self.forking.clear()
        self.free_rows = list(range(self.config.max_num_seqs - 1, -1, -1))
        self.released_rows, self.swap_out = [], []
        self.blocks.reset(num_blocks)
        self.host = HostPool(num_host_blocks)
