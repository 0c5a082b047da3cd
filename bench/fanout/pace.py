"""When a server without a model answers its steps: on an absolute schedule, so that what is late is never forgiven.

Step n is due n periods after the first. A step that is asked for late is answered at once, and its lag behind the
schedule is written down: a scheduler that keeps up has a lag that does not grow, one that does not falls behind for
ever. The schedule begins anew only when nothing was asked for a second, because nobody had anything to run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, TextIO

_PAUSE_S = 1.0


class Pace:
    """Of the steps of one worker. log: gets a line of JSON per schedule and one per second of steps."""

    def __init__(self, steps_per_second: float, log: TextIO | None = None) -> None:
        self._period_s = 1 / steps_per_second
        self._log = log
        self._origin_step, self._origin_s = 0, 0.0
        self._done_s = float("-inf")
        self._lag_s = self._noted_s = 0.0

    def wait_s(self, step: int, now_s: float) -> float:
        """How long it is until a step that is asked for now is due."""
        if now_s - self._done_s > _PAUSE_S:
            self._origin_step, self._origin_s, self._noted_s = step, now_s, now_s
            self._write({"step": step, "at_s": now_s, "period_s": self._period_s})
        return max(self._due_s(step) - now_s, 0.0)

    def done(self, step: int, now_s: float) -> None:
        """The step is answered now."""
        self._done_s = now_s
        self._lag_s = max(self._lag_s, now_s - self._due_s(step))
        if now_s - self._noted_s >= 1:
            self._write({"lag_s": self._lag_s, "at_s": now_s})
            self._lag_s, self._noted_s = 0.0, now_s

    def _due_s(self, step: int) -> float:
        return self._origin_s + (step - self._origin_step) * self._period_s

    def _write(self, line: dict[str, float]) -> None:
        if self._log is not None:
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()


class Schedule(NamedTuple):
    """The last schedule in a log. lags: (time, greatest lag of the second before it), in seconds."""

    step: int
    at_s: float
    period_s: float
    lags: list[tuple[float, float]]

    def due_s(self, step: int) -> float:
        """When a step was due."""
        return self.at_s + (step - self.step) * self.period_s


def read_schedule(log: Path) -> Schedule:
    """Raises ValueError if nothing ran."""
    schedule = None
    for line in map(json.loads, log.read_text().splitlines()):
        if "step" in line:
            schedule = Schedule(line["step"], line["at_s"], line["period_s"], [])
        elif schedule is not None:
            schedule.lags.append((line["at_s"], line["lag_s"]))
    if schedule is None:
        raise ValueError(f"{log} has no schedule: the worker took no step")
    return schedule
