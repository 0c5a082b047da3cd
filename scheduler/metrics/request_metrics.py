"""What a front end counts about the requests that come through it: plain, picklable, and added up over front ends."""

from __future__ import annotations

from collections import Counter
from typing import Final

from scheduler.metrics.histogram import Histogram

# Bounds in seconds. Those of vLLM's dashboards, with finer ones below where a small model on a fast machine is.
_FIRST_TOKEN: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
_BETWEEN_TOKENS: Final = (
    0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
)  # fmt: skip
_REQUEST: Final = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0,
)  # fmt: skip


class RequestMetrics:
    """Counters and histograms of one front end; all only grow, but for the two gauges.

    time_to_first_token: from a request's arrival to the first token of any of its sequences. inter_token_latency:
    between two tokens of a sequence, as they reach the front end. e2e_latency, queue_time, prefill_time, decode_time:
    of requests that ended well; the last three as in the proto's Usage.
    finished: sequences of accepted requests by the reason of their end, "abort" if the caller left.
    refused: requests that were never accepted, by ErrorInfo's reason. prompt_tokens: of requests that were admitted.
    live: accepted requests whose callers are not done with them, as of now. unread_tokens: generated and not taken by
    their callers' streams yet, as of now.
    """

    __slots__ = (
        "decode_time", "e2e_latency", "finished", "inter_token_latency", "live", "prefill_time", "prompt_tokens",
        "queue_time", "refused", "time_to_first_token", "unread_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(_FIRST_TOKEN)
        self.inter_token_latency = Histogram(_BETWEEN_TOKENS)
        self.e2e_latency = Histogram(_REQUEST)
        self.queue_time = Histogram(_REQUEST)
        self.prefill_time = Histogram(_REQUEST)
        self.decode_time = Histogram(_REQUEST)
        self.finished: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.live = 0
        self.unread_tokens = 0

    def add(self, other: RequestMetrics) -> None:
        """Adds those of another front end."""
        for name in self.__slots__:
            mine, others = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.add(others)
            else:
                setattr(self, name, mine + others)
