"""From what came, and from samples of the server's processes, to the figures of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from bench.fanout.load import Arrival, Load
from bench.fanout.pace import Schedule
from bench.fanout.processes import Sample

# The first and the last of the steady time, which are compared to see whether anything grows.
_PART_S = 10.0


def figures(
    load: Load, arrivals: Sequence[Arrival], samples: Sequence[Sample], schedule: Schedule | None
) -> dict[str, Any]:
    """Of the steady time: from `warm_up_s` after the first arrival, for as long as the load says, or as samples go."""
    from_s = min(one.at_s for one in arrivals) + load.warm_up_s
    steady = [one for one in samples if from_s <= one.at_s <= from_s + load.seconds]
    begin, end = steady[0], steady[-1]
    seconds = end.at_s - begin.at_s
    came = [one for one in arrivals if begin.at_s < one.at_s <= end.at_s]
    tokens = sum(one.num_tokens for one in came)
    cpus = [after - before for before, after in zip(begin.cpu_s, end.cpu_s, strict=True)]
    found = {
        "tokens_per_s": round(tokens / seconds),
        "cpu_us_per_token": round(1e6 * sum(cpus) / tokens, 2),
        "cpu_share_of_each_process": [round(cpu / seconds, 2) for cpu in cpus],
        "client_cpu_share": round((end.client_cpu_s - begin.client_cpu_s) / seconds, 2),
        "tokens_per_message": round(tokens / len(came), 2),
        "largest_message_tokens": max(one.num_tokens for one in came),
        "resident_mb": [round(one.resident / (1 << 20), 1) for one in (begin, end)],
        "seconds": round(seconds, 1),
    }
    if schedule is not None:
        delays = [(one.at_s, one.at_s - schedule.due_s(one.step)) for one in came]
        lags = [one for one in schedule.lags if begin.at_s < one[0] <= end.at_s]
        found["worker_lag_ms"] = _first_last_worst(lags, begin.at_s, end.at_s)
        found["delivery_delay_ms"] = _first_last_worst(delays, begin.at_s, end.at_s)
    return found


def _first_last_worst(values: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> dict[str, float]:
    """Medians of the first and the last ten seconds, and the greatest of all, in milliseconds."""
    return {
        "first_10_s": _median_ms(value for at_s, value in values if at_s < begin_s + _PART_S),
        "last_10_s": _median_ms(value for at_s, value in values if at_s > end_s - _PART_S),
        "worst": round(1e3 * max((value for _, value in values), default=0.0), 1),
    }


def _median_ms(values: Iterable[float]) -> float:
    return round(1e3 * statistics.median([*values] or [0.0]), 1)
