"""Sequences that may kill workers, each tried alone.

A worker that dies takes every sequence of its plans in flight with it, and nobody can tell which of them killed it. One
that was in flight at `DEATHS_OF_A_SUSPECT` deaths is a suspect. While there are suspects, nothing but one of them runs,
in order of service: if the worker dies, it was that one, and it ends; if it gets past the point where it was when
workers died, it is cleared and waits until all suspects have been tried. So a killer costs three deaths, and its
neighbours a pause.
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
        sequence.tokens_at_death = max(sequence.tokens_at_death, num_computed)
        if sequence.num_deaths >= DEATHS_OF_A_SUSPECT and sequence not in places.suspects:
            places.suspects.insert(sequence)
    return culprit


def clear(places: Places) -> None:
    """Lets the suspect that runs go if its settled tokens are past where it was at the deaths."""
    sequence = places.suspects[0]
    if sequence.queue is not Queue.RUNNING:
        return
    if len(sequence.spec.prompt) + sequence.num_output <= sequence.tokens_at_death:
        return
    places.suspects.remove(sequence)
    sequence.num_deaths = sequence.tokens_at_death = 0
    places.note(sequence, DecisionKind.CLEARED, suspects=len(places.suspects))
    if places.suspects:
        places.preempt(sequence, swap=False)
