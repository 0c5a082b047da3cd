"""A sequence while it lives in the core."""

from __future__ import annotations

import enum
from array import array
from typing import TYPE_CHECKING

from scheduler.core.history import History
from scheduler.core.sequence import SequenceSpec

if TYPE_CHECKING:
    from scheduler.core.decode_batch import DecodeBatch
    from scheduler.core.forks import Group
    from scheduler.core.prefix_cache import PrefixNode


class Queue(enum.Enum):
    """Where a sequence is. Every live sequence is in exactly one of the first three."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


# Python 3.11 looks up a member of an Enum by way of a descriptor, at several times the cost of a global.
WAITING, RUNNING, SWAPPED, FINISHED = Queue


class LiveSequence:
    """The state of one sequence. Two kinds of progress are kept apart: settled (results are back) and planned.

    key: order of service, (priority, arrival). It never changes, so a preempted sequence keeps its place.
    max_len: known tokens at which it ends: the prompt's and the spec's max_tokens, or what the pool holds if its end is
      open.
    token_ids: the prompt and all settled output tokens, but for those that the decode batch has not written back.
    decoding: the batch it decodes in, one token per plan, or None. While it is set, the three counts below hold what
      they were at `joined_at`; `decoding.clock` says how many plans have come since. slot: its place in the columns.
      written: settled plans of the batch whose token is in `token_ids`; those since are still in the batch's columns.
      full_date, last_date: the clock at which its blocks are full, and at which its last token has been planned.
    num_computed: leading tokens whose KV is in `blocks`, counting the plans sent. It chases
      len(token_ids) + num_in_flight_tokens; there is no prefill or decode phase.
    num_in_flight_tokens: sampled tokens whose plan is sent and whose result is not back.
    num_in_flight_plans: plans sent that schedule this sequence and whose result is not back.
    num_void_plans: the oldest of those, whose results are to be dropped because they read KV that is not to be trusted.
    num_deaths: workers that died while it was in flight. tokens_at_death: computed tokens then, at most.
    num_counted: leading tokens that were computed once and settled; those computed again count as recomputed.
    num_scored: prompt tokens, the first not counted, whose logprobs are settled. Where those are asked for, no KV
      beyond them is taken from the prefix cache: the hidden states that they come from are not kept.
    num_indexed: leading blocks that were offered to the prefix cache.
    nodes: the places in the prefix cache of the first of those, of one at least; the rest are in the tail of the last.
      They outlive a preemption, until the next admission.
    host_blocks: where its KV lies while it is swapped: that of the first num_computed tokens.
    group: the sequences of its request that share its prompt, until they have forked.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "decoding",
        "full_date",
        "group",
        "history",
        "host_blocks",
        "joined_at",
        "key",
        "last_date",
        "max_len",
        "nodes",
        "num_computed",
        "num_counted",
        "num_deaths",
        "num_in_flight_plans",
        "num_in_flight_tokens",
        "num_indexed",
        "num_overtaken",
        "num_preemptions",
        "num_scored",
        "num_void_plans",
        "queue",
        "row",
        "slot",
        "spec",
        "token_ids",
        "tokens_at_death",
        "written",
    )

    def __init__(self, spec: SequenceSpec, arrival: int, priority: int = 0) -> None:
        self.spec = spec
        self.arrival = arrival
        self.key = (priority, arrival)
        self.max_len = len(spec.prompt) + spec.max_tokens
        self.token_ids = array("I", spec.prompt)
        self.decoding: DecodeBatch | None = None
        self.joined_at = self.slot = self.written = self.full_date = self.last_date = 0
        self.num_computed = 0
        self.num_in_flight_tokens = 0
        self.num_in_flight_plans = 0
        self.num_void_plans = 0
        self.num_counted = 0
        self.num_deaths = self.tokens_at_death = 0
        self.num_preemptions = 0
        self.num_overtaken = 0
        self.num_indexed = self.num_scored = 0
        self.blocks: list[int] = []
        self.host_blocks: list[int] = []
        self.nodes: list[PrefixNode] = []
        self.group: Group | None = None
        self.history = History()
        self.row = -1
        self.queue = Queue.WAITING

    @property
    def num_output(self) -> int:
        """Settled output tokens."""
        unwritten = 0 if self.decoding is None else self.decoding.num_unwritten(self)
        return len(self.token_ids) - len(self.spec.prompt) + unwritten

    @property
    def planned_len(self) -> int:
        """Known tokens, those in flight included. Not kept while it decodes."""
        return len(self.token_ids) + self.num_in_flight_tokens

    @property
    def num_uncomputed(self) -> int:
        """Tokens that a plan may compute now. 0 while the next one is not sampled yet, and once the last token is
        sampled or in flight: its KV is never needed. Not kept while it decodes."""
        planned = self.planned_len
        return planned - self.num_computed if planned < self.max_len else 0

    @property
    def progress(self) -> tuple[int, int, int]:
        """(computed tokens, tokens in flight, plans in flight) as of now, whether it decodes or not."""
        if self.decoding is None:
            return self.num_computed, self.num_in_flight_tokens, self.num_in_flight_plans
        since = self.decoding.in_flight(self)
        return self.decoding.computed(self), self.num_in_flight_tokens + since, self.num_in_flight_plans + since

    def max_cached_tokens(self, block_size: int) -> int:
        """How many of its tokens may come from the prefix cache: none whose logprobs it still lacks."""
        most = max_cached_tokens(len(self.token_ids), block_size)
        if self.spec.sampling.num_prompt_logprobs is None or self.num_scored >= len(self.spec.prompt) - 1:
            return most
        return min(most, self.num_scored // block_size * block_size)

    def may_share_kv(self, other: LiveSequence) -> bool:
        """Whether the two may ever have shared a block: by an equal first block, or as branches of one prompt."""
        if self.group is not None and self.group is other.group:
            return True
        if not self.nodes or not other.nodes:
            return False
        mine, others = self.nodes[0], other.nodes[0]
        return (mine.cache_salt, mine.tokens) == (others.cache_salt, others.tokens)


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // block_size)


def max_cached_tokens(num_tokens: int, block_size: int) -> int:
    """How many of a sequence's tokens may come from the prefix cache: full blocks, and never the last token, whose
    logits the next token is drawn from."""
    return (num_tokens - 1) // block_size * block_size
