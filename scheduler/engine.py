"""The engine: one task, the only caller of the cores.

Each turn drains the inbox (front ends) and the results (workers), places and moves sequences, lets each core plan as
long as it can, writes the plans, and hands the front end one update per settled step with everything that happened.
While a worker executes step k, step k + 1 is already on its way.

Workers join and leave while it runs. What becomes of one worker's sequences when it is lost is said in `lane.py` and
`fleet.py`; what waits longer than the grace without any worker is failed, never left hanging.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from scheduler import wire
from scheduler.alarm import Alarm
from scheduler.core.errors import SchedulerError
from scheduler.core.result import End, EndReason, StepOutput
from scheduler.core.scheduler import Scheduler
from scheduler.fleet import Fleet
from scheduler.lane import WorkerLane
from scheduler.messages import Cancel, Finish, Message, Rejected, Started, StepUpdate
from scheduler.step_feed import StepFeed
from scheduler.step_timeout import StepTimeout
from scheduler.worker_client import WorkerClient
from scheduler.worker_link import WorkerLink

# A wait that lasts so much longer than it was to means that this process stood still, not that workers did.
_STOOD_STILL_NS = 500_000_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits of every worker's session: max_num_seqs rows, max_num_batched_tokens per step, max_model_len tokens of a
    sequence. worker_grace_s: seconds that requests wait for a worker before they fail. step_timeout: when a worker is
    hung."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    worker_grace_s: float
    step_timeout: StepTimeout


@dataclass(slots=True)
class _News:
    """What a turn has for the front end."""

    started: list[Started] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    outputs: list[StepOutput] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)


class Engine:
    """Drives the workers that `join`.

    config_digest: that a worker must have to be used. open_core: makes the core of a worker.
    on_health: called with a worker's address, or "" for all together, and whether it makes progress, whenever that
    changes; None once a worker has left.
    """

    def __init__(
        self,
        config: EngineConfig,
        config_digest: bytes,
        open_core: Callable[[wire.WorkerCapacity], Scheduler],
        *,
        on_health: Callable[[str, bool | None], None],
    ) -> None:
        self.fleet = Fleet()
        self.steps = StepFeed()
        self._config = config
        self._config_digest = config_digest
        self._open_core = open_core
        self._on_health = on_health
        self._links: dict[str, WorkerLink] = {}
        self._health: dict[str, bool] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._inbox: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._alarm = Alarm(self._rang)

    @property
    def why_not_connected(self) -> str:
        """Why there is no session with any worker, by worker if there are several."""
        links = list(self._links.values())
        if len(links) == 1:
            return links[0].why_not_connected
        return "; ".join(f"{link.address}: {link.why_not_connected}" for link in links) or "no worker is known"

    def join(self, address: str, capacity: wire.WorkerCapacity | None = None) -> None:
        """Takes a worker in, or back. capacity: if it is known; else it takes part once a session has opened."""
        lane = self.fleet.find(address)
        if lane is not None:
            lane.stay()
        elif address not in self._links:
            client = WorkerClient(address)
            link = self._links[address] = WorkerLink(client, self._config_digest, self._limits, self._wake.set)
            if capacity is not None:
                self._open_lane(link, capacity)
        self._wake.set()

    def leave(self, address: str) -> None:
        """A worker goes: it gets nothing new, what waits for it moves, and what it runs ends there if it can."""
        lane = self.fleet.find(address)
        if lane is None:
            self._forget(address)
        else:
            lane.leave(time.monotonic_ns())
        self._wake.set()

    def send(self, message: Message) -> None:
        """Takes a message from a front end; it is handled in the next turn."""
        self._inbox.append(message)
        self._wake.set()

    async def run(self, deliver: Callable[[StepUpdate], None]) -> None:
        """Turns until cancelled. deliver: called on this event loop whenever there is news for the front end."""
        try:
            while True:
                self._wake.clear()
                for update in self._turn():
                    deliver(update)
                for link in self._links.values():
                    link.check()
                await self._sleep()
        finally:
            self._alarm.set(None)
            for address in list(self._links):
                self._stop_link(address)
            if self._stopping:
                await asyncio.wait(self._stopping)

    # -- a turn ------------------------------------------------------------------------------------------------------

    def _turn(self) -> list[StepUpdate]:
        now_ns, news = time.monotonic_ns(), _News()
        self._welcome()
        self._drain_inbox(news, now_ns)
        for lane in self.fleet:
            news.outputs += lane.settle(now_ns)
            news.ends += lane.keep_up(now_ns)
        self.fleet.move(now_ns)
        for lane in self.fleet:
            news.ends += lane.fail_after_grace(now_ns, self._grace_ns)
            news.started += lane.plan(now_ns)
        for lane in self.fleet.move(now_ns):  # what the plans left waiting, to workers that have room
            news.started += lane.plan(now_ns)
        for output in news.outputs:
            self.fleet.forget(output.ends)
        self.fleet.forget(news.ends)
        self._dismiss()
        self._report_health(now_ns)
        return _updates(now_ns, news)

    def _welcome(self) -> None:
        """Opens lanes for workers whose first session has opened."""
        if len(self.fleet) == len(self._links):
            return
        for address, link in self._links.items():
            if link.capacity is not None and self.fleet.find(address) is None:
                self._open_lane(link, link.capacity)

    def _open_lane(self, link: WorkerLink, capacity: wire.WorkerCapacity) -> None:
        core = self._open_core(capacity)

        def make(number: int) -> WorkerLane:
            return WorkerLane(
                number,
                link,
                core,
                capacity,
                self.steps.tap(core, link.address),
                step_timeout=self._config.step_timeout,
                now_ns=time.monotonic_ns(),
            )

        self.fleet.join(make)

    def _drain_inbox(self, news: _News, now_ns: int) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Cancel):
                self.fleet.finish(message.sequence_id, EndReason.ABORT)
                continue
            if isinstance(message, Finish):
                self.fleet.finish(message.sequence_id, EndReason.STOP, message.num_output_tokens)
                continue
            try:
                self.fleet.add(message.specs, now_ns)
            except SchedulerError as error:
                news.rejected.append(
                    Rejected(
                        sequence_id=message.specs[0].sequence_id,
                        kind=type(error).__name__,
                        message=str(error),
                        field=error.field,
                        value=str(error.value),
                        limit=str(error.limit),
                    )
                )

    def _dismiss(self) -> None:
        for lane in self.fleet.dismiss():
            log.info("worker left", worker=lane.address)
            self._forget(lane.address)

    def _report_health(self, now_ns: int) -> None:
        """Overall it is healthy if some worker makes progress, and none has something to run and does not run it."""
        states = dict.fromkeys(self._links, False)
        working = stalled = False
        for lane in self.fleet:
            states[lane.address] = fine = lane.makes_progress(now_ns)
            working = working or (fine and not lane.leaving)
            stalled = stalled or (lane.connected and not fine)
        states[""] = working and not stalled
        for name, fine in states.items():
            if self._health.get(name) is not fine:
                self._health[name] = fine
                self._on_health(name, fine)

    async def _sleep(self) -> None:
        """Waits for a message, a result or the end of a session, but not past the time at which something is due."""
        due_ns = [time_ns for lane in self.fleet for time_ns in lane.wake_times_ns(self._grace_ns)]
        self._alarm.set(min(due_ns, default=None))
        await self._wake.wait()

    def _rang(self, late_ns: int) -> None:
        """Something is due that no message announces."""
        if late_ns > _STOOD_STILL_NS:
            for lane in self.fleet:
                lane.pardon(late_ns)
        self._wake.set()

    # -- small things ------------------------------------------------------------------------------------------------

    @property
    def _grace_ns(self) -> int:
        return int(self._config.worker_grace_s * 1e9)

    def _limits(self, capacity: wire.WorkerCapacity) -> wire.SessionLimits:
        return wire.SessionLimits(
            num_blocks=capacity.num_blocks,
            num_host_blocks=capacity.num_host_blocks,
            num_rows=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            max_model_len=self._config.max_model_len,
        )

    def _forget(self, address: str) -> None:
        self._stop_link(address)
        if self._health.pop(address, None) is not None:
            self._on_health(address, None)

    def _stop_link(self, address: str) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            task = asyncio.create_task(link.stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)


def _updates(now_ns: int, news: _News) -> list[StepUpdate]:
    """One update per settled step, so that a sequence has at most one token in each; the last has the rest."""
    outputs = news.outputs
    if not outputs and (news.started or news.rejected or news.ends):
        outputs = [StepOutput()]
    updates = []
    for index, output in enumerate(outputs):
        last = index == len(outputs) - 1
        updates.append(
            StepUpdate(
                now_ns=now_ns,
                started=tuple(news.started) if last else (),
                rejected=tuple(news.rejected) if last else (),
                sequence_ids=output.sequence_ids,
                token_ids=output.token_ids,
                logprobs=output.logprobs,
                top_tokens=output.top_tokens,
                top_logprobs=output.top_logprobs,
                scores=output.scores,
                ends=output.ends + (tuple(news.ends) if last else ()),
            )
        )
    return updates
