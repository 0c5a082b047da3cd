"""A sequence while it lives in the core."""

from __future__ import annotations

import enum

from scheduler.core.sequence import SequenceSpec


class Queue(enum.Enum):
    """Where a sequence is. Every live sequence is in exactly one of the first two."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class LiveSequence:
    """The state of one sequence. Two kinds of progress are kept apart: settled (results are back) and planned.

    token_ids: the prompt and all settled output tokens.
    num_in_flight_tokens: sampled tokens whose plan is sent and whose result is not back.
    num_in_flight_plans: plans sent that schedule this sequence and whose result is not back.
    num_void_plans: the oldest of those, whose results are to be dropped because they read KV that is not to be trusted.
    num_computed: leading tokens whose KV is in `blocks`, counting the plans sent. It chases
      len(token_ids) + num_in_flight_tokens; there is no prefill or decode phase.
    num_counted: leading tokens that were computed once and settled; those computed again count as recomputed.
    block_keys: prefix keys of the leading full blocks, as far as they were needed. They outlive a preemption.
    num_indexed: leading blocks that were offered to the prefix cache.
    """

    __slots__ = (
        "arrival",
        "block_keys",
        "blocks",
        "num_computed",
        "num_counted",
        "num_in_flight_plans",
        "num_in_flight_tokens",
        "num_indexed",
        "num_output",
        "num_preemptions",
        "num_void_plans",
        "queue",
        "row",
        "spec",
        "token_ids",
    )

    def __init__(self, spec: SequenceSpec, arrival: int) -> None:
        self.spec = spec
        self.arrival = arrival
        self.token_ids = list(spec.prompt)
        self.num_output = 0
        self.num_in_flight_tokens = 0
        self.num_in_flight_plans = 0
        self.num_void_plans = 0
        self.num_computed = 0
        self.num_counted = 0
        self.num_preemptions = 0
        self.num_indexed = 0
        self.blocks: list[int] = []
        self.block_keys: list[bytes] = []
        self.row = -1
        self.queue = Queue.WAITING

    @property
    def key(self) -> tuple[int, int]:
        """Order of service: priority, then arrival. It never changes, so a preempted sequence keeps its place."""
        return self.spec.priority, self.arrival

    @property
    def num_uncomputed(self) -> int:
        """Tokens that a plan may compute now. 0 while the next one is not sampled yet, and once the last token that
        max_tokens allows is sampled or in flight: its KV is never needed."""
        if self.num_output + self.num_in_flight_tokens >= self.spec.max_tokens:
            return 0
        return len(self.token_ids) + self.num_in_flight_tokens - self.num_computed

    def begins_like(self, other: LiveSequence) -> bool:
        """Whether the first full blocks are equal: without that two sequences have never shared a block."""
        return bool(self.block_keys) and self.block_keys[:1] == other.block_keys[:1]


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // block_size)


def max_cached_tokens(num_tokens: int, block_size: int) -> int:
    """How many of a sequence's tokens may come from the prefix cache: full blocks, and never the last token, whose
    logits the next token is drawn from."""
    return (num_tokens - 1) // block_size * block_size
