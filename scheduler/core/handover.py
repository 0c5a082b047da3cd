"""Sequences that move from one worker's core to another's.

What moves waits: a sequence that runs, is swapped or has a plan in flight stays until it waits. It takes along all that
the next core needs to go on with it: its prompt and tokens, which are computed anew there, how many of the
prompt's logprobs were delivered, and what is known of the deaths of workers that it was part of, so that the rule of
`suspects.py` holds across workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core import suspects
from scheduler.core.errors import DuplicateSequenceError, InvalidSequenceError, NeverFitsError
from scheduler.core.forks import Group
from scheduler.core.history import DecisionKind
from scheduler.core.live import LiveSequence, Queue, blocks_for
from scheduler.core.places import Places
from scheduler.core.sequence import SequenceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A sequence between two cores. output: its tokens so far. The other fields are those of `LiveSequence`."""

    spec: SequenceSpec
    output: tuple[int, ...] = ()
    num_counted: int = 0
    num_scored: int = 0
    num_preemptions: int = 0
    num_deaths: int = 0
    tokens_at_death: int = 0

    @property
    def is_suspect(self) -> bool:
        """Whether it must be tried alone."""
        return self.num_deaths >= suspects.DEATHS_OF_A_SUSPECT


def blocks_needed(handovers: tuple[Handover, ...], block_size: int) -> int:
    """Blocks without which these cannot go on: those of the known tokens of the longest and, unless its end is open, of
    the rest; and those that all need to be admitted together."""
    first = handovers[0].spec
    together = blocks_for(len(first.prompt), block_size) + len(handovers) - 1
    return max(together, *(_blocks_needed(one, block_size) for one in handovers))


def _blocks_needed(one: Handover, block_size: int) -> int:
    rest = 1 if one.spec.open_ended else max(1, one.spec.max_tokens - len(one.output))
    return blocks_for(len(one.spec.prompt) + len(one.output) + rest - 1, block_size)


def movable(sequence: LiveSequence) -> tuple[LiveSequence, ...]:
    """The sequence and those that must move together with it, the first of its request first; empty if it cannot."""
    if sequence.queue is not Queue.WAITING or sequence.num_in_flight_plans:
        return ()
    if sequence.group is not None and sequence in sequence.group.waiting:
        return tuple(sequence.group.waiting)
    return (sequence,)


def look(sequence: LiveSequence) -> Handover:
    """What would move."""
    return Handover(
        spec=sequence.spec,
        output=tuple(sequence.token_ids[len(sequence.spec.prompt) :]),
        num_counted=sequence.num_counted,
        num_scored=sequence.num_scored,
        num_preemptions=sequence.num_preemptions,
        num_deaths=sequence.num_deaths,
        tokens_at_death=sequence.tokens_at_death,
    )


def withdraw(places: Places, sequence_id: int) -> tuple[Handover, ...]:
    """Takes a sequence and its siblings out, if they can move."""
    sequence = places.live.get(sequence_id)
    moving = () if sequence is None else movable(sequence)
    taken = tuple(look(one) for one in moving)
    for one in moving:
        places.waiting.remove(one)
        places.forget_deaths(one)
        one.queue = Queue.FINISHED
        del places.live[one.spec.sequence_id]
    return taken


def check(places: Places, handovers: tuple[Handover, ...], num_blocks: int) -> None:
    """Raises the domain error of what this core cannot go on with."""
    if not handovers or len(handovers) > places.config.max_num_seqs:
        limit = places.config.max_num_seqs
        raise InvalidSequenceError(f"{len(handovers)} sequences move, limit {limit}", field="n", limit=limit)
    for handover in handovers:
        if handover.spec.sequence_id in places.live:
            raise DuplicateSequenceError(f"sequence {handover.spec.sequence_id} is live", field="sequence_id")
    needed = blocks_needed(handovers, places.config.block_size)
    if needed > num_blocks:
        raise NeverFitsError(f"needs {needed} blocks, pool {num_blocks}", field="max_tokens", limit=num_blocks)


def settle_in(places: Places, sequences: list[LiveSequence], handovers: tuple[Handover, ...]) -> None:
    """Gives sequences that wait here what they brought along. Several are a group that is admitted together. While a
    suspect is here, nothing else runs."""
    for sequence, handover in zip(sequences, handovers, strict=True):
        sequence.token_ids.extend(handover.output)
        sequence.num_counted = handover.num_counted
        sequence.num_scored = handover.num_scored
        sequence.num_preemptions = handover.num_preemptions
        sequence.num_deaths = handover.num_deaths
        sequence.tokens_at_death = handover.tokens_at_death
        places.note(sequence, DecisionKind.ADOPTED, tokens=len(sequence.token_ids), deaths=sequence.num_deaths)
        suspects.admit(places, sequence)
    if len(sequences) > 1 and not any(one.num_deaths for one in sequences):  # what has died was admitted, and forked
        group = Group(list(sequences))
        for sequence in sequences:
            sequence.group = group
