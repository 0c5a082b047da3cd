"""Sequences that may kill workers, each tried alone.

A worker that dies takes every sequence of its plans in flight with it, and nobody can tell which of them killed it. One
that was in flight at `DEATHS_OF_A_SUSPECT` deaths, and did not get past the first in between, is a suspect. While there
are suspects, nothing but one of them runs, in order of service: if the worker dies, it was that one, and it ends; if it
gets past the point where it was when workers died, it is cleared and waits until all suspects have been tried. So a
killer costs three deaths, and its neighbours a pause.

Deaths go along with a sequence that moves to another worker. What gets past the point of a death there was not its
cause, so workers that die for reasons of their own make no suspects.
"""

from __future__ import annotations

from scheduler.core.history import DecisionKind
from scheduler.core.live import LiveSequence, Queue
from scheduler.core.places import Places

DEATHS_OF_A_SUSPECT = 2


def note_deaths(places: Places) -> LiveSequence | None:
    """A worker died: counts it for every sequence in flight, before they forget their plans. Returns the one that was
    tried alone, if it was in flight."""
    tried = places.suspects[0] if places.suspects else None
    culprit = None
    for sequence in places.live.values():
        num_computed, _, num_plans = sequence.progress
        if not num_plans:
            continue
        if sequence is tried:
            culprit = sequence
        sequence.num_deaths += 1
        known = len(sequence.spec.prompt) + sequence.num_output
        sequence.tokens_at_death = max(sequence.tokens_at_death, num_computed, known)
        _file(places, sequence)
    return culprit


def admit(places: Places, sequence: LiveSequence) -> None:
    """Takes in a sequence that waits here and comes from another worker, with the deaths that it brings. A suspect that
    is now the first stops all that runs: it is preempted, and what is swapped waits."""
    first = not places.suspects or sequence.key < places.suspects[0].key
    if sequence.num_deaths >= DEATHS_OF_A_SUSPECT and first:
        for other in list(places.running):
            if other.queue is Queue.RUNNING:  # not parted from a group by an earlier one
                places.preempt(other, swap=False)
        for other in list(places.swapped):
            places.swapped.remove(other)
            places.drop_host_blocks(other)
            places.requeue(other)
    if sequence.num_deaths:
        _file(places, sequence)


def clear(places: Places) -> None:
    """Lets those go that got past the point where they were at deaths: a token was sampled since, from what was in
    flight then. Called while there are suspects or others that were in flight at a death."""
    for sequence in list(places.survivors):
        if _is_past(sequence):
            places.forget_deaths(sequence)
            sequence.num_deaths = sequence.tokens_at_death = 0
    if not places.suspects:
        return
    sequence = places.suspects[0]
    if not _is_past(sequence):
        return
    places.suspects.remove(sequence)
    sequence.num_deaths = sequence.tokens_at_death = 0
    places.note(sequence, DecisionKind.CLEARED, suspects=len(places.suspects))
    if places.suspects:
        places.preempt(sequence, swap=False)


def _is_past(sequence: LiveSequence) -> bool:
    settled = len(sequence.spec.prompt) + sequence.num_output
    return sequence.queue is Queue.RUNNING and settled > sequence.tokens_at_death


def _file(places: Places, sequence: LiveSequence) -> None:
    """Puts a sequence that was in flight at deaths where it belongs."""
    if sequence.num_deaths < DEATHS_OF_A_SUSPECT:
        places.survivors.insert(sequence)
    elif sequence not in places.suspects:
        if sequence in places.survivors:
            places.survivors.remove(sequence)
        places.suspects.insert(sequence)
