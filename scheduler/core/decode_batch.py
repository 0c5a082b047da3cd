"""The sequences that decode: one token in every plan, nothing else to decide.

Most of a busy server's sequences are here most of the time, so a step must not touch them one by one. Their progress is
a clock: each plan computes one token of every member, and a member's counts are what they were when it joined plus the
plans since. When a member needs attention (a new block, its last token) is known beforehand, and is written in a
calendar. Sampled tokens stay in the columns in which they came, until a member's date comes or it leaves. A step costs
the members whose date has come; the columns of a plan are tuples that are made again only when the membership has
changed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from scheduler.core.live import LiveSequence


@dataclass(frozen=True, slots=True)
class DecodeColumns:
    """The members at one time, as parallel columns. stop_token_ids: the union of all members'."""

    sequences: tuple[LiveSequence, ...] = ()
    sequence_ids: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    ones: tuple[int, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class _StopTokens:
    """The union of the members' stop token ids; sets are counted, because most members have equal ones."""

    counts: dict[frozenset[int], int] = field(default_factory=dict)
    union: frozenset[int] = frozenset()

    def add(self, ids: frozenset[int]) -> None:
        self.counts[ids] = self.counts.get(ids, 0) + 1
        if self.counts[ids] == 1:
            self.union |= ids

    def remove(self, ids: frozenset[int]) -> None:
        self.counts[ids] -= 1
        if self.counts[ids] == 0:
            del self.counts[ids]
            self.union = frozenset().union(*self.counts)


_KEY = attrgetter("key")


def _swap_remove(column: list[Any], slot: int) -> None:
    column[slot] = column[-1]
    del column[-1]


class DecodeBatch:
    """clock: plans made so far, with members or without. settled: plans whose results are back.

    width: tokens of a plan at most.
    """

    def __init__(self, block_size: int, width: int) -> None:
        self.clock = 0
        self.settled = 0
        self._block_size = block_size
        # Tokens of the last settled plans, a ring of columns of fixed width, so that a member's are one strided slice.
        # A member is looked at when its blocks are full. What it has unwritten is then written back if the ring would
        # not hold it, a block's more and what was in flight now.
        self._width = width
        self._spare = 3 * block_size
        self._depth = self._spare + block_size + 8
        self._log = array("I", bytes(4 * width * self._depth))
        self._sequences: list[LiveSequence] = []
        self._ids: list[int] = []
        self._rows: list[int] = []
        self._stops = _StopTokens()
        # By clock, then by sequence id. A member that leaves is struck out: most end long before max_tokens.
        self._full: dict[int, dict[int, LiveSequence]] = {}
        self._last: dict[int, dict[int, LiveSequence]] = {}
        self._columns: DecodeColumns | None = DecodeColumns()

    def __len__(self) -> int:
        return len(self._sequences)

    def columns(self) -> DecodeColumns:
        """The members now."""
        if self._columns is None:
            self._columns = DecodeColumns(
                tuple(self._sequences),
                tuple(self._ids),
                tuple(self._rows),
                (1,) * len(self._rows),
                self._stops.union,
            )
        return self._columns

    def join(self, sequence: LiveSequence, slot: int | None = None) -> None:
        """Takes in a running sequence whose next tokens are one per plan, from the next plan on.

        slot: of a member whose place in the columns it takes; None: it comes last."""
        if slot is None:
            slot = len(self._sequences)
            self._sequences.append(sequence)
            self._ids.append(sequence.spec.sequence_id)
            self._rows.append(sequence.row)
        else:
            self._sequences[slot] = sequence
            self._ids[slot] = sequence.spec.sequence_id
            self._rows[slot] = sequence.row
        sequence.decoding = self
        sequence.joined_at = sequence.written = self.clock
        sequence.slot = slot
        self._stops.add(sequence.spec.stop_token_ids)
        self._columns = None
        sequence.last_date = self.clock + sequence.max_len - sequence.planned_len
        self._last.setdefault(sequence.last_date, {})[sequence.spec.sequence_id] = sequence
        self.set_date(sequence, len(sequence.blocks) * self._block_size - sequence.num_computed)

    def leave(self, sequence: LiveSequence, heir: LiveSequence | None = None) -> LiveSequence | None:
        """Lets a member go and writes back its counts. Its place in the columns is the heir's, who joins, or else the
        last member's, who is returned, unless it was the last."""
        _strike(self._last, sequence.last_date, sequence)
        _strike(self._full, sequence.full_date, sequence)
        self._write_back(sequence)
        in_flight = self.in_flight(sequence)
        sequence.num_computed = self.computed(sequence)
        sequence.num_in_flight_plans += in_flight
        sequence.num_in_flight_tokens += in_flight
        if self.settled > sequence.joined_at:  # else what it computed here, and perhaps before, is still in flight
            sequence.num_counted = sequence.num_computed - in_flight
        sequence.decoding = None
        self._columns = None
        if heir is not None:
            self.join(heir, sequence.slot)
            self._stops.remove(sequence.spec.stop_token_ids)
            return None
        self._stops.remove(sequence.spec.stop_token_ids)
        last = self._sequences[-1]
        if last is not sequence:
            self._write_back(last)
            last.slot = sequence.slot
        for column in (self._sequences, self._ids, self._rows):
            _swap_remove(column, sequence.slot)
        return None if last is sequence else last

    def settle(self, tokens: tuple[int, ...]) -> None:
        """Takes the tokens of the oldest plan in flight, the members' first, in the order of its columns."""
        start = self.settled % self._depth * self._width
        self._log[start : start + len(tokens)] = array("I", tokens)
        self.settled += 1

    def num_unwritten(self, sequence: LiveSequence) -> int:
        """Settled tokens of a member that its `token_ids` lack."""
        return max(self.settled - sequence.written, 0)

    def _write_back(self, sequence: LiveSequence) -> None:
        count = self.settled - sequence.written
        if count > 0:
            assert count <= self._depth, "the ring has lost some"
            width, slot = self._width, sequence.slot
            first = sequence.written % self._depth
            beyond = first + count - self._depth
            if beyond > 0:  # around the ring's end
                sequence.token_ids += self._log[first * width + slot :: width]
                sequence.token_ids += self._log[slot : beyond * width : width]
            else:
                sequence.token_ids += self._log[first * width + slot : (first + count) * width : width]
            sequence.written = self.settled

    def computed(self, sequence: LiveSequence) -> int:
        """Leading tokens of a member whose KV is in its blocks, counting the plans sent."""
        return sequence.num_computed + self.clock - sequence.joined_at

    def in_flight(self, sequence: LiveSequence) -> int:
        """Plans of this batch that compute a token of a member and whose result is not back."""
        return self.clock - max(sequence.joined_at, self.settled)

    def turn_pages(self, sequences: list[LiveSequence]) -> None:
        """As `set_date` for members that have got one more block each, because theirs were full."""
        date = self.clock + self._block_size
        due = self._full.setdefault(date, {})
        for sequence in sequences:
            sequence.full_date = date
            due[sequence.spec.sequence_id] = sequence

    def set_date(self, sequence: LiveSequence, num_tokens: int) -> None:
        """Writes down that a member's blocks have room for `num_tokens` more: the plan at that clock needs another."""
        date = sequence.full_date = self.clock + num_tokens
        due = self._full.get(date)
        if due is None:
            due = self._full[date] = {}
        due[sequence.spec.sequence_id] = sequence

    def take_full(self) -> list[LiveSequence]:
        """The members whose blocks are full now, in order of service. Each needs a new date, or leaves."""
        full = sorted(self._full.pop(self.clock, {}).values(), key=_KEY)
        for sequence in full:
            if self.settled - sequence.written > self._spare:
                self._write_back(sequence)
        return full

    def take_last(self) -> list[LiveSequence]:
        """The members whose last token has been planned."""
        return list(self._last.pop(self.clock, {}).values())


def _strike(calendar: dict[int, dict[int, LiveSequence]], date: int, sequence: LiveSequence) -> None:
    """Takes an entry out, if its date has not come."""
    due = calendar.get(date)
    if due is not None:
        due.pop(sequence.spec.sequence_id, None)
        if not due:
            del calendar[date]
