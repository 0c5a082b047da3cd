"""Makes recordings: of runs of the lab, and of a service in virtual time whose step times follow a model exactly."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from scheduler.core.config import CoreConfig
from scheduler.core.plan import StepPlan
from scheduler.core.result import EndReason, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.recording.recorded_scheduler import RecordedScheduler
from scheduler.recording.step_model import ShapeTracker, StepShape
from scheduler.recording.writer import MAX_SEGMENT_BYTES, RecordingWriter
from tests.scheduler.core import toy_model
from tests.scheduler.core.lab import Lab
from tests.scheduler.core.toy_worker import ToyWorker

CONFIG = CoreConfig(num_blocks=64, block_size=4, max_num_seqs=16, max_num_batched_tokens=64, watermark=2)
CONSTANT_NS, DECODE_NS, PREFILL_NS, CONTEXT_NS = 1_000_000, 50_000, 20_000, 100


def fail(error: OSError) -> None:
    """For writers whose disk must not fail."""
    raise AssertionError("the recording failed") from error


def record_lab(lab: Lab, path: Path, *, max_segment_bytes: int = MAX_SEGMENT_BYTES) -> None:
    """Repeats all calls of a lab on a core that records them."""
    writer = RecordingWriter(path, lab.config, on_failure=fail, max_segment_bytes=max_segment_bytes)
    repeat(lab, RecordedScheduler(lab.config, writer))
    writer.close()


def repeat(lab: Lab, core: Scheduler) -> None:
    """Makes all calls of a lab again."""
    for record in lab.records:
        assert record.verb(core) == record.answer


def step_ns(shape: StepShape) -> int:
    """How long the service's worker takes for a step."""
    return (
        CONSTANT_NS
        + DECODE_NS * shape.decode_rows
        + PREFILL_NS * shape.prefill_tokens
        + CONTEXT_NS * shape.context_tokens
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """What happens to a service and when, in nanoseconds. lost: from, to: the time that no worker is there.

    stops: output tokens of sequences that a stop string ends.
    """

    arrivals: tuple[tuple[int, SequenceSpec], ...]
    cancels: tuple[tuple[int, int], ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    stops: Mapping[int, int] = field(default_factory=dict)

    def times(self) -> Iterable[int]:
        """All of them."""
        yield from (time_ns for time_ns, _ in self.arrivals + self.cancels)
        yield from (time_ns for pair in self.lost for time_ns in pair)


def arrivals(
    *, count: int, gap_ns: float, seed: int, patience_ns: int | None = None
) -> tuple[tuple[int, SequenceSpec], ...]:
    """Random sequences at random times, `gap_ns` apart on average."""
    dice = random.Random(seed)
    time_ns, sequences = 0, []
    for sequence_id in range(count):
        time_ns += 1 + int(dice.expovariate(1 / gap_ns))
        sequences.append(
            (
                time_ns,
                SequenceSpec(
                    sequence_id=sequence_id,
                    prompt=tuple(dice.choices(range(1, toy_model.VOCABULARY), k=dice.randint(1, 40))),
                    max_tokens=dice.randint(1, 40),
                    stop_token_ids=frozenset({toy_model.EOS}),
                    seed=dice.randrange(1 << 32),
                    deadline_ns=None if patience_ns is None or dice.random() < 0.8 else time_ns + patience_ns,
                ),
            )
        )
    return tuple(sequences)


def record_service(path: Path, events: Events, config: CoreConfig = CONFIG) -> None:
    """Serves until nothing is left to do and records it."""
    _Service(path, events, config).run()


class _Service:
    def __init__(self, path: Path, events: Events, config: CoreConfig) -> None:
        self._events = events
        self._config = config
        self._now_ns = self._free_ns = 0
        self._writer = RecordingWriter(path, config, on_failure=fail, clock_ns=lambda: self._now_ns)
        self._core = RecordedScheduler(config, self._writer)
        self._worker = ToyWorker(config, num_blocks=config.num_blocks, epoch=0)
        self._tracker = ShapeTracker()
        self._in_flight: deque[tuple[int, StepResult]] = deque()
        self._num_outputs: Counter[int] = Counter()

    def run(self) -> None:
        times = sorted(self._events.times())
        while True:
            self._turn()
            future = [time_ns for time_ns in times if time_ns > self._now_ns]
            pending = future[:1] + [done_ns for done_ns, _ in self._in_flight]
            if self._core.next_deadline_ns is not None:
                pending.append(self._core.next_deadline_ns)
            if not pending:
                break
            self._now_ns = min(pending)
        self._writer.close()

    def _turn(self) -> None:
        now_ns, core, events = self._now_ns, self._core, self._events
        for time_ns, spec in events.arrivals:
            if time_ns == now_ns:
                core.add(spec)
        for time_ns, sequence_id in events.cancels:
            if time_ns == now_ns:
                core.finish(sequence_id, EndReason.ABORT)
        while self._in_flight and self._in_flight[0][0] <= now_ns:
            self._num_outputs.update(core.update(self._in_flight.popleft()[1]).sequence_ids)
        core.expire(now_ns)
        if any(time_ns == now_ns for time_ns, _ in events.lost):
            core.requeue_all(self._config.num_blocks)
            self._in_flight.clear()
            self._worker = ToyWorker(self._config, num_blocks=self._config.num_blocks, epoch=core.epoch)
        if any(begin <= now_ns < end for begin, end in events.lost):
            return
        while isinstance(plan := core.schedule(), StepPlan):
            execute_ns = step_ns(self._tracker.shape(plan))
            self._free_ns = max(self._free_ns, now_ns) + execute_ns
            self._in_flight.append((self._free_ns, replace(self._worker.execute(plan), execute_ns=execute_ns)))
        self._stop()

    def _stop(self) -> None:
        """What the front end found in the tokens of this turn comes before the next one."""
        for sequence_id, count in self._events.stops.items():
            if self._num_outputs[sequence_id] >= count:
                del self._num_outputs[sequence_id]
                self._core.finish(sequence_id, EndReason.STOP, count)
