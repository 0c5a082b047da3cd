"""Explanations in words. Each is a predicate of the sequence, "needs 7 blocks, 3 free, 2 evictable, watermark 1", so
that it can follow "which" in the explanation of another one."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.explain import Constraint, Explanation
from scheduler.core.history import Decision
from scheduler.core.live import Queue
from scheduler.inspector import SequenceName


def sentence(explanation: Explanation, names: Mapping[int, SequenceName]) -> str:
    """What a sequence does or lacks. names: by sequence id."""
    needs = explanation.needs
    match explanation.constraint:
        case Constraint.NONE:
            return _unhindered(explanation)
        case Constraint.SWAPPED:
            return f"waits until swapped sequences are back; {_root(explanation, names)}"
        case Constraint.QUEUE:
            return f"waits behind {_root(explanation, names)}"
        case Constraint.FORK:
            return f"waits for the first sequence of its request, {_which(explanation, names)}"
        case Constraint.SUSPECTS:
            return f"waits while requests that may have killed workers run alone; {_root(explanation, names)}"
        case Constraint.ROWS:
            return f"needs {_count(needs.rows_needed, 'row')}, {needs.rows_free} of {needs.rows_total} free"
        case Constraint.TOKEN_BUDGET:
            return f"gets no tokens: sequences before it take all {needs.token_budget} of a step"
        case Constraint.RESULT if explanation.sequence.queue is Queue.RUNNING:
            return f"runs in row {explanation.sequence.row}: the result of its plan in flight comes first"
        case Constraint.RESULT:
            return "was preempted: the result of its plan in flight comes first"
        case Constraint.BLOCKS:
            return (
                f"needs {_count(needs.blocks_needed, 'block')}, {needs.blocks_free} free, "
                f"{needs.blocks_evictable} evictable, watermark {needs.watermark}"
            )


def decision(entry: Decision) -> str:
    """Such as "step 12: admitted, blocks 7, tokens 96"."""
    numbers = "".join(f", {name.replace('_', ' ')} {value}" for name, value in entry.numbers.items())
    return f"step {entry.step_id}: {entry.kind.value.replace('_', ' ')}{numbers}"


def _unhindered(explanation: Explanation) -> str:
    sequence, tokens = explanation.sequence, explanation.needs.tokens_available
    plan = "the next plan"
    if explanation.awaited_step is not None:
        plan += f", which needs the result of step {explanation.awaited_step}"
    if sequence.queue is not Queue.RUNNING:
        return f"is {sequence.queue.value} and has all it needs: it is part of {plan}"
    known = sequence.num_prompt_tokens + sequence.num_output_tokens
    if sequence.num_computed_tokens < min(sequence.num_prompt_tokens, known - 1):
        progress = f"{sequence.num_computed_tokens} of {known} tokens computed"
        return f"runs in row {sequence.row}: {progress}, {tokens} in {plan}"
    return f"runs in row {sequence.row}: {_count(tokens, 'token')} in {plan}"


def _which(explanation: Explanation, names: Mapping[int, SequenceName]) -> str:
    assert explanation.root is not None, "this constraint has one"
    return f"which {sentence(explanation.root, names)}"


def _root(explanation: Explanation, names: Mapping[int, SequenceName]) -> str:
    root = explanation.root
    assert root is not None, "this constraint has one"
    name = names.get(root.sequence.sequence_id)
    shown = f"sequence {root.sequence.sequence_id}"
    if name is not None:
        shown = name.request_id if name.index == 0 else f"{name.request_id} [{name.index}]"
    return f"{shown}, {_which(explanation, names)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
