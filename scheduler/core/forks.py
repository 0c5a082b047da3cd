"""Parallel samples: n sequences of one request that share their prompt's KV.

The group is admitted all or none. Its first member, the leader, computes the prompt. The others get their rows, the
prompt's full blocks by reference and one block each at the same time, and then wait until the plan that computes the
last prompt token has been sent. In the plan after it each copies the partial block, computes the last prompt token
anew, and draws its own first token from those logits. From then on each is a sequence like any other.

If the leader loses its blocks before its prompt is planned (a preemption, an end, a lost worker), the group parts: its
members wait as ordinary sequences, which find the prompt's full blocks in the prefix cache.
"""

from __future__ import annotations

from scheduler.core.live import LiveSequence


class Group:
    """The sequences of one request.

    waiting: members that wait to be admitted together, leader first; empty once they were, or once the group parted.
    leader: the member that computes the prompt.
    pending: members that hold a row and wait for the fork.
    pinned: the leader's block that they will copy, held by a reference of its own; None if the prompt fills its blocks.
    ready: whether the plan with the last prompt token has been sent.
    """

    __slots__ = ("leader", "pending", "pinned", "ready", "waiting")

    def __init__(self, members: list[LiveSequence]) -> None:
        self.waiting = members
        self.leader = members[0]
        self.pending: list[LiveSequence] = []
        self.pinned: int | None = None
        self.ready = False

    def drop_waiting(self, sequence: LiveSequence) -> None:
        """A member ended before the group was admitted; the next one leads."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            if self.waiting:
                self.leader = self.waiting[0]
