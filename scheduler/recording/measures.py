"""What a run was like for its callers and for the pool, recorded or simulated alike."""

from __future__ import annotations

from array import array
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from scheduler.core.counters import Counters
from scheduler.core.plan import Idle, StepPlan
from scheduler.core.result import EndReason, StepOutput
from scheduler.core.scheduler import Scheduler
from scheduler.recording.verbs import ADD_GROUP, ADOPT, SCHEDULE, UPDATE, WITHDRAW, Verb, ends_in, specs_in

_MAX_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """The core after a plan, or with nothing to plan: seconds since the first arrival, blocks in use as a fraction,
    queue lengths."""

    seconds: float
    usage: float
    running: int
    waiting: int


class Timeline:
    """Samples over time; when there are many, every second, fourth ... plan is kept, and when the core fell idle."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._stride = 1
        self._offered = 0

    def offer(self, seconds: float, core: Scheduler) -> None:
        """Samples the core, or not."""
        self._offered += 1
        if self._offered % self._stride:
            return
        self._take(seconds, core)

    def fell_idle(self, seconds: float, core: Scheduler) -> None:
        """Samples a core that has nothing to plan, unless the last sample says so: nobody samples it until it has."""
        if self.samples and self.samples[-1].running:
            self._take(seconds, core)

    def _take(self, seconds: float, core: Scheduler) -> None:
        pool = core.blocks.pool
        usage = pool.num_referenced / pool.num_blocks
        self.samples.append(Sample(seconds, usage, core.num_running, core.num_waiting))
        if len(self.samples) >= _MAX_SAMPLES:
            del self.samples[::2]
            self._stride *= 2


class Measures:
    """Filled by observing a run; times are in nanoseconds.

    queue_ns: arrival to first admission. ttft_ns: arrival to first token. inter_token_ns: between two tokens of one
    sequence. refused: sequences that `add` refused. ends: how many ended why. counters: of the core.
    """

    def __init__(self) -> None:
        self.queue_ns = array("q")
        self.ttft_ns = array("q")
        self.inter_token_ns = array("q")
        self.refused = 0
        self.ends: Tally[EndReason] = Tally()
        self.timeline = Timeline()
        self.num_steps = 0
        self._arrival_ns: dict[int, int] = {}
        self._last_token_ns: dict[int, int] = {}
        self._unadmitted: set[int] = set()
        self._counters: Counters = Counters()
        self._first_ns: int | None = None
        self._last_ns = 0

    @property
    def counters(self) -> dict[str, int]:
        """Of the core, by name."""
        return asdict(self._counters)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token or end; 0 if there was neither."""
        return max(0, self._last_ns - self._first_ns) / 1e9 if self._first_ns is not None else 0.0

    @property
    def output_tokens_per_s(self) -> float:
        """Generated tokens over the duration."""
        return self._counters.generated_tokens / self.duration_s if self.duration_s else 0.0

    @property
    def prefix_hit_rate(self) -> float:
        """Of all tokens that were looked up at admissions, the fraction that was found."""
        queries = self._counters.prefix_cache_queries
        return self._counters.prefix_cache_hits / queries if queries else 0.0

    def observe(self, core: Scheduler, time_ns: int, verb: Verb, arguments: tuple[Any, ...], answer: Any) -> None:
        """Takes in one call and its answer."""
        self._counters = core.counters
        if verb in (ADD_GROUP, ADOPT):
            self._on_add(time_ns, arguments, answer)
        elif verb is WITHDRAW:
            for handover in answer:
                self._forget(handover.spec.sequence_id)
        elif verb is SCHEDULE and isinstance(answer, StepPlan):
            self._on_plan(core, time_ns, answer)
        elif verb is SCHEDULE and isinstance(answer, Idle):
            self.timeline.fell_idle(self._seconds(time_ns), core)
        elif verb is UPDATE and isinstance(answer, StepOutput):
            self._on_output(time_ns, answer)
        for end in ends_in(answer):
            self.ends[end.reason] += 1
            self._last_ns = time_ns
            self._forget(end.sequence_id)

    def _forget(self, sequence_id: int) -> None:
        self._unadmitted.discard(sequence_id)
        self._arrival_ns.pop(sequence_id, None)
        self._last_token_ns.pop(sequence_id, None)

    def _on_add(self, time_ns: int, arguments: tuple[Any, ...], answer: Any) -> None:
        self._first_ns = time_ns if self._first_ns is None else self._first_ns
        for spec in specs_in(arguments):
            if isinstance(answer, Exception):
                self.refused += 1
            else:
                self._arrival_ns[spec.sequence_id] = time_ns
                self._unadmitted.add(spec.sequence_id)

    def _on_plan(self, core: Scheduler, time_ns: int, plan: StepPlan) -> None:
        self.num_steps += 1
        for admission in plan.admissions:
            if admission.sequence_id in self._unadmitted:
                self._unadmitted.remove(admission.sequence_id)
                self.queue_ns.append(time_ns - self._arrival_ns[admission.sequence_id])
        self.timeline.offer(self._seconds(time_ns), core)

    def _seconds(self, time_ns: int) -> float:
        return (time_ns - (self._first_ns or 0)) / 1e9

    def _on_output(self, time_ns: int, output: StepOutput) -> None:
        self._last_ns = time_ns
        for sequence_id in output.sequence_ids:
            last_ns = self._last_token_ns.get(sequence_id)
            if last_ns is None:
                self.ttft_ns.append(time_ns - self._arrival_ns[sequence_id])
            else:
                self.inter_token_ns.append(time_ns - last_ns)
            self._last_token_ns[sequence_id] = time_ns


def percentile(values: Sequence[int], percent: float) -> float:
    """The smallest value that at least `percent` of all do not exceed; NaN of none."""
    if not values:
        return float("nan")
    return float(sorted(values)[max(1, ceil(len(values) * percent / 100)) - 1])
