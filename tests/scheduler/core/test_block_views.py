"""What each block is used for."""

from __future__ import annotations

from scheduler.core.block_views import BlockState, view_blocks
from scheduler.core.config import CoreConfig
from scheduler.core.result import EndReason
from scheduler.core.sequence import SequenceSpec
from tests.scheduler.core.lab import Lab

CONFIG = CoreConfig(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=64)
PROMPT = tuple(range(1, 11))


def test_states_users_and_tokens() -> None:
    bench = Lab(CONFIG)
    bench.add(SequenceSpec(sequence_id=1, prompt=PROMPT, max_tokens=4, tenant="acme", cache_salt="s"))
    bench.schedule()
    bench.add(SequenceSpec(sequence_id=2, prompt=PROMPT, max_tokens=4, tenant="other", cache_salt="s"))
    bench.schedule()
    first, second = bench.core.snapshot().running
    shared = first.blocks[:2]
    assert second.blocks[:2] == shared
    views = {view.block: view for view in view_blocks(bench.core, range(8))}
    for index, block in enumerate(shared):
        view = views[block]
        assert (view.state, view.references, view.num_tokens) == (BlockState.REFERENCED, 2, 4)
        assert view.users == ((1, index), (2, index))
        assert (view.tenant, view.cache_salt) == ("acme", "s")  # who computed it
    tail = views[first.blocks[2]]
    # Ten tokens of the prompt and one of the output: the second plan computes the first sampled token.
    assert (tail.num_tokens, tail.users, tail.tenant) == (3, ((1, 2),), None)
    assert views[second.blocks[2]].num_tokens == 2
    free = [view for view in views.values() if view.state is BlockState.FREE]
    assert len(free) == 8 - 4
    assert all((view.references, view.num_tokens, view.users) == (0, 0, ()) for view in free)


def test_a_cached_block_has_tokens_and_no_users() -> None:
    bench = Lab(CONFIG)
    bench.add(SequenceSpec(sequence_id=1, prompt=PROMPT, max_tokens=4))
    bench.schedule()
    blocks = bench.core.snapshot().running[0].blocks
    bench.finish(1, EndReason.ABORT)
    first, last = view_blocks(bench.core, (blocks[0], blocks[2]))
    assert (first.state, first.references, first.num_tokens, first.users) == (BlockState.CACHED, 0, 4, ())
    assert last.state is BlockState.FREE
    bench.deliver()


def test_views_come_in_the_order_asked_for() -> None:
    bench = Lab(CONFIG)
    assert [view.block for view in view_blocks(bench.core, (5, 1, 3))] == [5, 1, 3]
