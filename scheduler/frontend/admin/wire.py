"""From what the inspector answers to the messages of admin.proto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from octavo.serving.v1 import admin_pb2
from scheduler.core.block_views import BlockState
from scheduler.core.explain import Constraint, Explanation, Holder, Needs
from scheduler.core.history import Decision, DecisionKind
from scheduler.core.live import Queue
from scheduler.core.snapshot import SequenceSnapshot
from scheduler.frontend.admin import sentences
from scheduler.frontend.stats import Stats
from scheduler.inspector import ExplainedSequence, RequestExplanation, SequenceName, SequenceView, WorkerBlock
from scheduler.step_feed import WatchedStep

_MAX_USERS: Final = 8
_NOBODY: Final = SequenceName(request_id="")
_PREPARING: Final = "is being prepared: it is not in a queue yet"
_NO_WORKER: Final = "waits for a worker: none is connected"

_STATES: Final = {
    Queue.WAITING: admin_pb2.SEQUENCE_STATE_WAITING,
    Queue.RUNNING: admin_pb2.SEQUENCE_STATE_RUNNING,
    Queue.SWAPPED: admin_pb2.SEQUENCE_STATE_SWAPPED,
}
_CONSTRAINTS: Final = {
    Constraint.NONE: admin_pb2.CONSTRAINT_UNSPECIFIED,
    Constraint.SWAPPED: admin_pb2.CONSTRAINT_SWAPPED,
    Constraint.QUEUE: admin_pb2.CONSTRAINT_QUEUE,
    Constraint.ROWS: admin_pb2.CONSTRAINT_ROWS,
    Constraint.TOKEN_BUDGET: admin_pb2.CONSTRAINT_TOKEN_BUDGET,
    Constraint.RESULT: admin_pb2.CONSTRAINT_RESULT,
    Constraint.BLOCKS: admin_pb2.CONSTRAINT_BLOCKS,
    Constraint.FORK: admin_pb2.CONSTRAINT_FORK,
    Constraint.SUSPECTS: admin_pb2.CONSTRAINT_SUSPECTS,
}
_DECISIONS: Final = {
    DecisionKind.QUEUED: admin_pb2.DECISION_KIND_QUEUED,
    DecisionKind.ADMITTED: admin_pb2.DECISION_KIND_ADMITTED,
    DecisionKind.PREFIX_HIT: admin_pb2.DECISION_KIND_PREFIX_HIT,
    DecisionKind.PREEMPTED: admin_pb2.DECISION_KIND_PREEMPTED,
    DecisionKind.SWAPPED_OUT: admin_pb2.DECISION_KIND_SWAPPED_OUT,
    DecisionKind.SWAPPED_IN: admin_pb2.DECISION_KIND_SWAPPED_IN,
    DecisionKind.FORKED: admin_pb2.DECISION_KIND_FORKED,
    DecisionKind.REQUEUED: admin_pb2.DECISION_KIND_REQUEUED,
    DecisionKind.OVERTAKEN: admin_pb2.DECISION_KIND_OVERTAKEN,
    DecisionKind.CLEARED: admin_pb2.DECISION_KIND_CLEARED,
    DecisionKind.ADOPTED: admin_pb2.DECISION_KIND_ADOPTED,
}
# A sequence that waits for its sibling says less about the request than that sibling does.
_NOT_FIRST_TO_TELL: Final = (admin_pb2.CONSTRAINT_UNSPECIFIED, admin_pb2.CONSTRAINT_FORK)
BLOCK_STATES: Final = {
    admin_pb2.BLOCK_STATE_FREE: BlockState.FREE,
    admin_pb2.BLOCK_STATE_CACHED: BlockState.CACHED,
    admin_pb2.BLOCK_STATE_REFERENCED: BlockState.REFERENCED,
}
_BLOCK_STATES: Final = {state: value for value, state in BLOCK_STATES.items()}


def state(view: SequenceView) -> admin_pb2.SequenceState:
    """Where a sequence is."""
    return admin_pb2.SEQUENCE_STATE_PREPARING if view.sequence is None else _STATES[view.sequence.queue]


def stats(values: Stats) -> admin_pb2.GetStatsResponse:
    """The figures; the messages have the values' field names."""
    workers = [admin_pb2.WorkerStats(**asdict(worker)) for worker in values.workers]
    return admin_pb2.GetStatsResponse(
        queues=admin_pb2.QueueStats(**asdict(values.queues)),
        blocks=admin_pb2.BlockStats(**asdict(values.blocks)),
        counters=admin_pb2.CounterStats(**asdict(values.counters)),
        worker=workers[0] if workers else None,
        host_blocks=admin_pb2.HostBlockStats(**asdict(values.host_blocks)),
        workers=workers,
    )


def sequence_info(view: SequenceView) -> admin_pb2.SequenceInfo:
    """A sequence as it is listed."""
    info = admin_pb2.SequenceInfo(
        request_id=view.name.request_id,
        index=view.name.index,
        state=state(view),
        age_seconds=round(view.age_ns / 1e9, 3),
        sequence_id=view.sequence_id or 0,
    )
    sequence = view.sequence
    if sequence is not None and view.worker is not None:
        info.worker = view.worker.address
        info.queue_position = view.position + 1
        info.tenant = sequence.tenant
        info.priority = sequence.priority
        info.prompt_tokens = sequence.num_prompt_tokens
        info.output_tokens = sequence.num_output_tokens
        info.max_tokens = sequence.max_tokens
        info.computed_tokens = sequence.num_computed_tokens
        info.blocks = len(sequence.blocks)
        info.host_blocks = sequence.num_host_blocks
        info.preemptions = sequence.num_preemptions
        info.overtaken = sequence.num_overtaken
        if sequence.row is not None:
            info.row = sequence.row
    return info


def explanation(answer: RequestExplanation, names: Mapping[int, SequenceName]) -> admin_pb2.ExplainRequestResponse:
    """names: by sequence id."""
    sequences = [_explained(entry, names) for entry in answer.sequences]
    told = next((entry for entry in sequences if entry.constraint not in _NOT_FIRST_TO_TELL), sequences[0])
    return admin_pb2.ExplainRequestResponse(
        summary=told.sentence,
        sequences=sequences,
        holders=[_holder(holder, names) for holder in answer.holders],
        total_holders=answer.num_holders,
    )


def block_info(block: WorkerBlock, names: Mapping[int, SequenceName]) -> admin_pb2.BlockInfo:
    """names: by sequence id."""
    view = block.view
    users = [(names.get(sequence_id, _NOBODY), index) for sequence_id, index in view.users[:_MAX_USERS]]
    return admin_pb2.BlockInfo(
        block=view.block,
        state=_BLOCK_STATES[view.state],
        references=view.references,
        indexed=view.tenant is not None,
        tokens=view.num_tokens,
        users=[
            admin_pb2.BlockUser(request_id=name.request_id, index=name.index, table_index=index)
            for name, index in users
        ],
        tenant=view.tenant or "",
        cache_salt=view.cache_salt or "",
        worker=block.worker,
    )


def watched_step(step: WatchedStep) -> admin_pb2.WatchStepsResponse:
    """A step's summary."""
    summary = step.summary
    return admin_pb2.WatchStepsResponse(
        skipped_steps=step.num_skipped,
        step=admin_pb2.StepSummary(
            step_id=summary.step_id,
            rows=summary.rows,
            tokens=summary.tokens,
            sampled_tokens=summary.sampled_tokens,
            admissions=summary.admissions,
            released_rows=summary.released_rows,
            preemptions=summary.preemptions,
            swapped_out_blocks=summary.swapped_out_blocks,
            swapped_in_blocks=summary.swapped_in_blocks,
            copied_blocks=summary.copied_blocks,
            queues=admin_pb2.QueueStats(
                running=summary.num_running, waiting=summary.num_waiting, swapped=summary.num_swapped
            ),
            free_blocks=summary.free_blocks,
            cached_blocks=summary.cached_blocks,
            execute_seconds=round(summary.execute_ns / 1e9, 6),
            turnaround_seconds=round(summary.turnaround_ns / 1e9, 6),
            worker=summary.worker,
        ),
    )


def _explained(entry: ExplainedSequence, names: Mapping[int, SequenceName]) -> admin_pb2.SequenceExplanation:
    explained = entry.explanation
    info = sequence_info(entry.view)
    if explained is None:
        return admin_pb2.SequenceExplanation(
            sentence=_PREPARING, constraint=admin_pb2.CONSTRAINT_PREPARING, sequence=info
        )
    message = admin_pb2.SequenceExplanation(
        sentence=sentences.sentence(explained, names),
        constraint=_CONSTRAINTS[explained.constraint],
        needs=_needs(explained.needs, explained.sequence),
        sequence=info,
        history=[_decision(decision) for decision in explained.sequence.history],
        history_dropped=explained.sequence.num_dropped_decisions,
    )
    if entry.view.worker is not None and not entry.view.worker.connected:
        message.sentence, message.constraint = _NO_WORKER, admin_pb2.CONSTRAINT_WORKER
    elif explained.root is not None:
        message.root_constraint = _CONSTRAINTS[_deepest(explained.root).constraint]
        message.root_request_id = names.get(_deepest(explained.root).sequence.sequence_id, _NOBODY).request_id
    return message


def _deepest(explanation: Explanation) -> Explanation:
    return explanation if explanation.root is None else _deepest(explanation.root)


def _needs(needs: Needs, sequence: SequenceSnapshot) -> admin_pb2.Needs:
    return admin_pb2.Needs(**asdict(needs), plans_in_flight=sequence.num_in_flight_plans)


def _decision(entry: Decision) -> admin_pb2.DecisionRecord:
    return admin_pb2.DecisionRecord(
        step_id=entry.step_id,
        kind=_DECISIONS[entry.kind],
        text=sentences.decision(entry),
        numbers=entry.numbers,
    )


def _holder(holder: Holder, names: Mapping[int, SequenceName]) -> admin_pb2.BlockHolder:
    sequence = holder.sequence
    name = names.get(sequence.sequence_id, _NOBODY)
    return admin_pb2.BlockHolder(
        request_id=name.request_id,
        index=name.index,
        blocks=len(sequence.blocks),
        exclusive_blocks=holder.num_exclusive,
        tenant=sequence.tenant,
    )
