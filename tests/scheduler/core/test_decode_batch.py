"""Members of the decode batch: their columns, their counts by the clock, and when they need attention."""

from __future__ import annotations

from scheduler.core.decode_batch import DecodeBatch
from scheduler.core.live import LiveSequence
from scheduler.core.sequence import SequenceSpec

BLOCK = 4
WIDTH = 8


def sequence(
    sequence_id: int, *, prompt: int = 3, max_tokens: int = 50, stop: frozenset[int] = frozenset()
) -> LiveSequence:
    """One whose prompt and first token are settled, with the blocks that hold them, ready to decode."""
    spec = SequenceSpec(sequence_id=sequence_id, prompt=(1,) * prompt, max_tokens=max_tokens, stop_token_ids=stop)
    live = LiveSequence(spec, arrival=sequence_id)
    live.token_ids.append(9)
    live.num_computed = live.num_counted = prompt
    live.row = 10 + sequence_id
    live.blocks = list(range(-(-prompt // BLOCK)))
    return live


def plan(batch: DecodeBatch, count: int = 1) -> None:
    batch.clock += count


def settle(batch: DecodeBatch, *tokens: int) -> None:
    """The oldest plan in flight comes back with these tokens, in the order of its columns."""
    batch.settle(tokens)


def test_columns_are_parallel_and_a_leaver_is_replaced_by_the_last() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    assert len(batch.columns().rows) == 0
    members = [sequence(i) for i in range(4)]
    for member in members:
        batch.join(member)
    columns = batch.columns()
    assert (columns.sequence_ids, columns.rows, columns.ones) == ((0, 1, 2, 3), (10, 11, 12, 13), (1, 1, 1, 1))
    assert columns.sequences == tuple(members)
    assert batch.columns() is columns, "made anew although nobody came or went"
    batch.leave(members[1])
    batch.leave(members[3])
    assert batch.columns().sequence_ids == (0, 2)
    assert columns.sequence_ids == (0, 1, 2, 3), "a plan in flight holds these"
    batch.join(members[1])
    batch.leave(members[0])
    columns = batch.columns()
    assert (columns.sequence_ids, columns.rows) == ((1, 2), (11, 12))


def test_an_heir_takes_the_place_of_a_leaver_and_nobody_moves() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    leaver, other, heir = sequence(1, stop=frozenset({7})), sequence(2), sequence(3, stop=frozenset({7}))
    batch.join(leaver)
    batch.join(other)
    plan(batch, 2)
    settle(batch, 10, 20)
    assert batch.leave(leaver, heir) is None
    assert batch.columns().sequence_ids == (3, 2)
    assert batch.columns().stop_token_ids == {7}
    settle(batch, 11, 21)  # of a plan that the leaver was in
    plan(batch)
    settle(batch, 32, 22)
    assert batch.leave(heir) is other
    batch.leave(other)
    assert [[*member.token_ids][-2:] for member in (leaver, other, heir)] == [[9, 10], [21, 22], [9, 32]]


def test_a_member_counts_by_the_clock() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    early, late = sequence(1), sequence(2)
    batch.join(early)
    plan(batch)
    late.num_in_flight_tokens = late.num_in_flight_plans = 1  # of the plan that computed its prompt
    batch.join(late)
    plan(batch)
    assert (early.progress, late.progress) == ((5, 2, 2), (4, 2, 2))
    settle(batch, 5)
    assert (early.progress, batch.in_flight(early), batch.in_flight(late)) == ((5, 1, 1), 1, 1)


def test_a_leaver_takes_its_counts_along() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    member = sequence(1)
    batch.join(member)
    plan(batch, 2)
    settle(batch, 5)
    plan(batch)
    batch.leave(member)
    assert member.decoding is None
    assert member.progress == (6, 2, 2)
    assert member.num_counted == 4, "3 of the prompt and the one whose result is back"


def test_what_was_computed_before_the_first_result_is_back_stays_uncounted() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    plan(batch)
    member = sequence(1)
    member.num_counted = 0
    member.num_in_flight_tokens = member.num_in_flight_plans = 1
    batch.join(member)
    plan(batch)
    batch.leave(member)
    assert (member.progress, member.num_counted) == ((4, 2, 2), 0)


def test_a_full_table_is_due_when_the_next_token_has_no_place() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    short, full = sequence(1, prompt=3), sequence(2, prompt=4)
    batch.join(short)
    batch.join(full)
    assert batch.take_full() == [full]
    full.blocks.append(9)
    batch.set_date(full, BLOCK)
    plan(batch)
    assert batch.take_full() == [short]
    short.blocks.append(8)
    batch.set_date(short, BLOCK)
    for _ in range(2):
        plan(batch)
        assert batch.take_full() == []
    plan(batch)
    assert batch.take_full() == [full]


def test_those_due_together_come_in_order_of_service() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    members = [sequence(i, prompt=4) for i in (3, 1, 2)]
    for member in members:
        batch.join(member)
    assert [member.arrival for member in batch.take_full()] == [1, 2, 3]


def test_the_last_token_is_due_once_it_is_planned() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    settled, in_flight = sequence(1, max_tokens=3), sequence(2, max_tokens=3)
    in_flight.num_in_flight_tokens = in_flight.num_in_flight_plans = 1
    batch.join(settled)
    batch.join(in_flight)
    plan(batch)
    assert batch.take_last() == [in_flight], "one settled, one in flight, one planned"
    batch.leave(in_flight)
    plan(batch)
    assert batch.take_last() == [settled]


def test_who_left_is_not_due_and_who_came_back_is_due_once() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    gone, back = sequence(1, max_tokens=4), sequence(2, max_tokens=4)
    for member in (gone, back):
        batch.join(member)
    batch.leave(gone)
    batch.leave(back)
    batch.join(back)
    plan(batch)
    assert batch.take_full() == [back]
    batch.set_date(back, BLOCK)
    plan(batch, 2)
    assert batch.take_last() == [back]


def test_tokens_are_written_back_when_a_member_leaves_or_moves() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    first, second, third = (sequence(i, prompt=1) for i in range(3))
    for member in (first, second, third):
        batch.join(member)
    plan(batch, 3)
    settle(batch, 10, 20, 30)
    settle(batch, 11, 21, 31)
    assert [member.num_output for member in (first, second, third)] == [3, 3, 3]
    assert [*first.token_ids] == [1, 9], "still in the columns"
    assert batch.leave(first) is third
    assert [[*member.token_ids] for member in (first, second, third)] == [[1, 9, 10, 11], [1, 9], [1, 9, 30, 31]]
    assert batch.take_full() == [second, third]
    assert second.num_output == third.num_output == 3


def test_tokens_are_written_back_when_a_block_is_full_and_the_ring_would_lose_some_before_the_next() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    member = sequence(0, prompt=1, max_tokens=100)
    batch.join(member)
    unwritten = []
    for token in range(1, 10 * BLOCK):
        full = batch.take_full()
        if full:
            batch.turn_pages(full)
            unwritten.append(member.num_output + 1 - len(member.token_ids))
        plan(batch, 1)
        settle(batch, token)
    assert 0 in unwritten[2:], "never"
    assert unwritten.count(0) < len(unwritten) / 2, "each time"
    batch.leave(member)
    assert [*member.token_ids] == [1, 9, *range(1, 10 * BLOCK)]


def test_a_long_decode_keeps_every_token() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    member = sequence(1, max_tokens=1000)
    batch.join(member)
    for number in range(500):
        for full in batch.take_full():
            full.blocks.append(0)
            batch.set_date(full, BLOCK)
        plan(batch)
        settle(batch, number)
    assert member.num_output == 501
    batch.leave(member)
    assert [*member.token_ids] == [1, 1, 1, 9, *range(500)]


def test_stop_tokens_are_the_union_of_the_members() -> None:
    batch = DecodeBatch(BLOCK, WIDTH)
    members = [sequence(1, stop=frozenset({0})), sequence(2, stop=frozenset({0, 7})), sequence(3, stop=frozenset({0}))]
    for member in members:
        batch.join(member)
    assert batch.columns().stop_token_ids == {0, 7}
    batch.leave(members[1])
    assert batch.columns().stop_token_ids == {0}
    batch.leave(members[0])
    assert batch.columns().stop_token_ids == {0}
    batch.leave(members[2])
    assert batch.columns().stop_token_ids == frozenset()
