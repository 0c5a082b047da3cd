"""The fan-out's benchmark: what it would call a loss, and a backlog."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.fanout.client import Body
from bench.fanout.figures import figures
from bench.fanout.http2 import read_arrivals
from bench.fanout.load import Arrival, Load
from bench.fanout.pace import Pace, Schedule, read_schedule
from bench.fanout.processes import Sample
from octavo.serving.v1 import generation_pb2

LOAD = Load(streams=1, steps_per_second=100, seconds=30, warm_up_s=5)


def body_of(pieces: Sequence[Sequence[int]], asked: int) -> Body:
    """An answer whose pieces came a second apart."""
    body = Body(asked)
    total = 0
    for place, token_ids in enumerate(pieces):
        total += len(token_ids)
        usage = generation_pb2.Usage(completion_tokens=total) if place == len(pieces) - 1 else None
        delta = generation_pb2.SequenceDelta(token_ids=token_ids)
        message = generation_pb2.GenerateResponse(deltas=[delta], usage=usage).SerializeToString()
        body.add(struct.pack(">BI", 0, len(message)) + message, float(place))
    return body


def test_a_schedule_forgives_nothing_and_begins_anew_after_a_pause(tmp_path: Path) -> None:
    log = io.StringIO()
    pace = Pace(100, log)
    assert pace.wait_s(7, 50.0) == 0  # the first step is due when it is asked for
    pace.done(7, 50.0)
    assert pace.wait_s(8, 50.004) == pytest.approx(0.006)
    pace.done(8, 50.01)
    assert pace.wait_s(9, 50.9) == 0
    pace.done(9, 50.9)  # 0.88 s late
    assert pace.wait_s(10, 51.2) == 0
    pace.done(10, 51.2)  # and still
    (tmp_path / "log").write_text(log.getvalue())
    schedule = read_schedule(tmp_path / "log")
    assert schedule.due_s(10) == pytest.approx(50.03)
    assert schedule.lags == [(51.2, pytest.approx(1.17))]
    assert pace.wait_s(11, 53.0) == 0
    pace.done(11, 53.0)
    (tmp_path / "log").write_text(log.getvalue())
    assert read_schedule(tmp_path / "log").due_s(11) == 53.0


def test_arrivals_know_their_steps_and_times() -> None:
    arrivals = list(read_arrivals(body_of([[32766, 32767], [0, 1, 2]], 5), 32700, True))
    assert arrivals == [Arrival(0.0, 2, 32767), Arrival(1.0, 3, 32770)]


@pytest.mark.parametrize(
    ("pieces", "asked"),
    [([[4, 5], [7]], 3), ([[4, 5], [5]], 3), ([[4, 5]], 3), ([[4], [3]], 2)],
    ids=["lost", "doubled", "too few", "out of order"],
)
def test_what_is_lost_or_doubled_is_an_error(pieces: list[list[int]], asked: int) -> None:
    with pytest.raises(ValueError, match=r"token|asked for"):
        list(read_arrivals(body_of(pieces, asked), 0, True))


@pytest.mark.parametrize("late_per_s", [0.0, 0.01], ids=["keeps up", "falls behind"])
def test_a_backlog_shows_as_a_delay_that_grows(late_per_s: float) -> None:
    schedule = Schedule(0, 0.0, 0.01, [])
    arrivals = [Arrival(step * 0.01 * (1 + late_per_s) + 0.02, 1, step) for step in range(4000)]
    samples = [Sample(float(second), (second * 0.5,), 1 << 20, 0.0) for second in range(40)]
    found = figures(LOAD, arrivals, samples, schedule)
    delay = found["delivery_delay_ms"]
    assert found["tokens_per_s"] == pytest.approx(100 / (1 + late_per_s), abs=1)
    assert found["cpu_us_per_token"] == pytest.approx(5000 * (1 + late_per_s), rel=0.02)
    assert delay["last_10_s"] - delay["first_10_s"] == pytest.approx(1e3 * late_per_s * 19, abs=10)
