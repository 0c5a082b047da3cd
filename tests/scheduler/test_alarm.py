"""When an alarm rings."""

from __future__ import annotations

import asyncio
import time

import pytest

from scheduler.alarm import Alarm

_MS, _HOUR = 1_000_000, 3_600_000_000_000


@pytest.mark.parametrize(
    "delays_ns", [(_MS,), (_HOUR, _MS), (_MS, 20 * _MS), (None, _MS), (_MS, None, 20 * _MS), (-_MS,)]
)
def test_it_rings_once_when_what_was_set_last_is_due(delays_ns: tuple[int | None, ...]) -> None:
    async def ring() -> None:
        now_ns, rung = time.monotonic_ns(), asyncio.Queue[int]()
        alarm = Alarm(rung.put_nowait)
        for delay_ns in delays_ns:
            alarm.set(None if delay_ns is None else now_ns + delay_ns)
        late_ns = await asyncio.wait_for(rung.get(), 10)
        last_ns = delays_ns[-1]
        assert last_ns is not None
        assert 0 <= late_ns <= time.monotonic_ns() - now_ns - last_ns
        await _a_later_one()
        assert rung.empty()

    asyncio.run(ring())


def test_it_does_not_ring_if_nothing_is_due_any_more() -> None:
    async def ring() -> None:
        rung = asyncio.Queue[int]()
        alarm = Alarm(rung.put_nowait)
        alarm.set(time.monotonic_ns() + _MS)
        alarm.set(None)
        await _a_later_one()
        assert rung.empty()

    asyncio.run(ring())


async def _a_later_one() -> None:
    rung = asyncio.Event()
    Alarm(lambda _: rung.set()).set(time.monotonic_ns() + 10 * _MS)
    await asyncio.wait_for(rung.wait(), 10)
