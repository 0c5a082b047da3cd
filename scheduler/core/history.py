"""What was decided about one sequence, for explaining it later: a bounded ring of decisions with their step numbers.

Decisions are rare (no step that merely decodes is one), so recording them costs a running sequence nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

MAX_ENTRIES: Final = 32


class DecisionKind(enum.Enum):
    """What can happen to a sequence between its arrival and its end.

    QUEUED: it arrived. ADMITTED: it got a row and blocks. PREFIX_HIT: prompt tokens were found in the prefix cache.
    PREEMPTED: it lost its row and its blocks, and is computed anew. SWAPPED_OUT: it lost its row, and its blocks went
    to host memory. SWAPPED_IN: they came back. FORKED: it got its blocks from another sequence of its request.
    REQUEUED: its worker was lost, or what it had computed is not to be trusted. OVERTAKEN: a smaller one passed it.
    CLEARED: it was suspected of killing workers, and ran alone without harm. ADOPTED: it came from another worker.
    """

    QUEUED = "queued"
    ADMITTED = "admitted"
    PREFIX_HIT = "prefix_hit"
    PREEMPTED = "preempted"
    SWAPPED_OUT = "swapped_out"
    SWAPPED_IN = "swapped_in"
    FORKED = "forked"
    REQUEUED = "requeued"
    OVERTAKEN = "overtaken"
    CLEARED = "cleared"
    ADOPTED = "adopted"


class Decision(NamedTuple):
    """One decision. step_id: of the next plan at that time. numbers: by name, such as blocks or tokens."""

    step_id: int
    kind: DecisionKind
    numbers: Mapping[str, int]


class History:
    """The last MAX_ENTRIES decisions about one sequence, oldest first. num_dropped: older ones that had to go."""

    __slots__ = ("_entries", "num_dropped")

    def __init__(self) -> None:
        # Short, and most histories hold two entries: a deque takes 600 bytes. Plain tuples: most are never looked at.
        self._entries: list[tuple[int, DecisionKind, Mapping[str, int]]] = []
        self.num_dropped = 0

    def record(self, step_id: int, kind: DecisionKind, numbers: Mapping[str, int]) -> None:
        """Notes a decision; the oldest one goes when there are too many. numbers: kept, not copied."""
        if len(self._entries) == MAX_ENTRIES:
            del self._entries[0]
            self.num_dropped += 1
        self._entries.append((step_id, kind, numbers))

    @property
    def entries(self) -> tuple[Decision, ...]:
        """Oldest first."""
        return tuple(map(Decision._make, self._entries))
