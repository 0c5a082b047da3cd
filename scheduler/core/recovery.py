"""Results that went wrong, and workers that went away."""

from __future__ import annotations

from scheduler.core import suspects
from scheduler.core.history import DecisionKind
from scheduler.core.limits import blocks_needed, max_len_within
from scheduler.core.live import LiveSequence, Queue, blocks_for
from scheduler.core.places import Places
from scheduler.core.plan_builder import PlanInFlight
from scheduler.core.result import End, EndReason, RowFlag, StepResult
from scheduler.core.settle import Settlement


def settle_flagged(places: Places, plan: PlanInFlight, result: StepResult, settlement: Settlement) -> None:
    """Books a result row by row. Flagged rows come first, those of ended sequences too: a sharer's token of this
    very plan, whatever its row, is not to be trusted either."""
    for place, sequence in enumerate(plan.decodes.sequences):
        if place not in plan.gone:
            places.stop_decoding(sequence)
    rows = [*(plan.gone[place] for place in range(len(plan.decodes.rows))), *plan.rows]
    stopped = [planned.sequence for planned in rows if planned.sequence.queue is Queue.RUNNING]
    for planned, flag in zip(rows, result.flags, strict=True):
        if flag is RowFlag.NON_FINITE and not planned.sequence.num_void_plans:
            _requeue_sharers(places, planned.sequence)
    places.pop_settled(result.tokens)
    token_index = 0
    columns = zip(rows, result.flags, result.num_sampled, strict=True)
    for place, (planned, flag, num_sampled) in enumerate(columns):
        settlement.settle_row(planned, place, token_index, flag)
        token_index += num_sampled
    for sequence in stopped:
        running = sequence.queue is Queue.RUNNING and sequence.decoding is None
        if running and sequence.num_uncomputed > 0 and sequence not in places.catching_up:
            places.catching_up.insert(sequence)


def _requeue_sharers(places: Places, failed: LiveSequence) -> None:
    """A row's KV is not to be trusted: nobody finds its blocks again, and those who may share them compute anew.

    What plans in flight compute for the sharers comes from that KV too, and is dropped; also for those that were
    preempted since.
    """
    places.blocks.distrust(failed)
    for sequence in list(places.live.values()):
        if sequence is failed or not sequence.may_share_kv(failed):
            continue
        if sequence.queue is Queue.RUNNING:
            places.preempt(sequence, swap=False, trusted=False)
        elif sequence.queue is Queue.SWAPPED:
            places.swapped.remove(sequence)
            places.drop_host_blocks(sequence)
            places.requeue(sequence)
        sequence.num_void_plans = sequence.num_in_flight_plans


def _end_too_large(places: Places, num_blocks: int) -> tuple[End, ...]:
    """Ends what can never fit into a smaller pool, with LENGTH if it has all that fits there; groups that cannot be
    admitted whole any more part."""
    block_size = places.config.block_size
    for sequence in places.waiting:
        if sequence.group is not None and sequence.group.waiting:
            together = blocks_for(len(sequence.spec.prompt), block_size) + places.num_siblings(sequence)
            if together > num_blocks:
                sequence.group.waiting = []
    ends = []
    for sequence in list(places.waiting):
        sequence.max_len = max_len_within(sequence.spec, num_blocks, block_size)
        if blocks_needed(sequence.spec, block_size) > num_blocks:
            ends.append(places.end(sequence, EndReason.CAPACITY))
        elif len(sequence.token_ids) >= sequence.max_len:
            ends.append(places.end(sequence, EndReason.LENGTH))
    return tuple(ends)


def requeue_all(places: Places, num_blocks: int, num_host_blocks: int) -> tuple[End, ...]:
    """The worker and all it held are gone: every sequence waits, from its settled tokens. What cannot fit ends, and
    what ran alone because workers had died with it."""
    places.counters.wasted_tokens += sum(plan.num_tokens for plan in places.in_flight)
    culprit = suspects.note_deaths(places)
    for sequence in [*places.running, *places.swapped]:
        if sequence.decoding is not None:
            places.decoding.leave(sequence)
        places.note(sequence, DecisionKind.REQUEUED, tokens=len(sequence.token_ids), deaths=sequence.num_deaths)
    for sequence in [*places.running.clear(), *places.swapped.clear()]:
        places.waiting.insert(sequence)
        sequence.queue = Queue.WAITING
        sequence.row = -1
        sequence.host_blocks = []
        places.blocks.forget(sequence)
    for sequence in places.waiting:
        sequence.num_in_flight_tokens = 0
        sequence.num_in_flight_plans = 0
        sequence.num_void_plans = 0
        sequence.num_computed = 0
    places.forget_worker_state(num_blocks, num_host_blocks)
    ends = () if culprit is None else (places.end(culprit, EndReason.KILLED_WORKER),)
    return ends + _end_too_large(places, num_blocks)
