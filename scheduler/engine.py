"""The engine: one task, the only caller of the core.

Each turn drains the inbox (front ends) and the results (worker), lets the core plan as long as it can, writes the
plans, and hands the front end one update with everything that happened. While the worker executes step k, step k + 1
is already on its way.

The worker's stream is the session: when it ends, every sequence is queued again from its tokens, and the connector
looks for the worker until it is back. What waits longer than the grace without a worker is failed, never left hanging.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from scheduler import wire
from scheduler.core.errors import ResultMismatchError, SchedulerError
from scheduler.core.plan import StepPlan
from scheduler.core.result import End, EndReason, StepOutput, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.messages import Cancel, Finish, Message, Rejected, Started, StepUpdate
from scheduler.rates import RateMeter
from scheduler.step_feed import StepFeed
from scheduler.worker_client import WorkerClient, WorkerSession, WorkerUnavailableError

_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 1.0
_CAPACITY_TIMEOUT_S = 5.0
# A request that kills its worker at once costs three sessions until it is known; a worker that none survives on is
# given up after a few more.
_MAX_FRUITLESS_SESSIONS = 6

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """max_model_len: tokens of a sequence. worker_grace_s: seconds that requests wait for a worker that was lost before
    they fail."""

    max_model_len: int
    worker_grace_s: float


class Engine:
    """Drives one worker.

    capacity: of the worker found at start; a worker that comes later must have the same config digest.
    on_session: called with True when a session has opened and with False when it was lost.
    """

    def __init__(
        self,
        core: Scheduler,
        config: EngineConfig,
        worker: WorkerClient,
        capacity: wire.WorkerCapacity,
        *,
        on_session: Callable[[bool], None],
    ) -> None:
        self.core = core
        self.steps = StepFeed(self.core)
        self.num_sessions = 0
        self._config = config
        self._worker = worker
        self._capacity = capacity
        self._on_session = on_session
        self._rates = RateMeter(capacity.bytes_per_block)
        self._sent: deque[StepPlan] = deque()
        self._inbox: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._session: WorkerSession | None = None
        self._next_session: tuple[wire.WorkerCapacity, WorkerSession] | None = None
        self._lost_at_ns: int | None = time.monotonic_ns()
        self._fruitless_sessions = 0
        self._why_not_connected = "no session was opened yet"

    @property
    def why_not_connected(self) -> str:
        """Why the last session ended, or the next one could not be opened."""
        return self._why_not_connected

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return self._session is not None

    @property
    def worker_address(self) -> str:
        """HOST:PORT of the worker."""
        return self._worker.address

    def send(self, message: Message) -> None:
        """Takes a message from a front end; it is handled in the next turn."""
        self._inbox.append(message)
        self._wake.set()

    async def run(self, deliver: Callable[[StepUpdate], None]) -> None:
        """Turns until cancelled. deliver: called on this event loop whenever there is news for the front end."""
        connector = asyncio.create_task(self._keep_connected())
        try:
            while True:
                self._wake.clear()
                for update in self._turn():
                    deliver(update)
                if connector.done():
                    connector.result()
                await self._sleep()
        finally:
            connector.cancel()
            await asyncio.wait([connector])
            for session in (self._session, self._next_session and self._next_session[1]):
                if session is not None:
                    session.end("the scheduler stops")
                    await session.wait_ended()

    def _turn(self) -> list[StepUpdate]:
        now_ns = time.monotonic_ns()
        rejected: list[Rejected] = []
        ends: list[End] = []
        self._drain_inbox(rejected)
        outputs = self._settle_results()
        deadline_ns = self.core.next_deadline_ns
        if deadline_ns is not None and deadline_ns <= now_ns:
            ends += self.core.expire(now_ns)
        ends += self._notice_loss(now_ns)
        ends += self._adopt_session()
        ends += self._fail_after_grace(now_ns)
        started = self._plan()
        return _updates(now_ns, started, rejected, outputs, ends)

    def _drain_inbox(self, rejected: list[Rejected]) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Cancel):
                self.core.finish(message.sequence_id, EndReason.ABORT)
                continue
            if isinstance(message, Finish):
                self.core.finish(message.sequence_id, EndReason.STOP, message.num_output_tokens)
                continue
            try:
                self.core.add_group(message.specs)
            except SchedulerError as error:
                rejected.append(
                    Rejected(
                        sequence_id=message.specs[0].sequence_id,
                        kind=type(error).__name__,
                        message=str(error),
                        field=error.field,
                        value=str(error.value),
                        limit=str(error.limit),
                    )
                )

    def _settle_results(self) -> list[StepOutput]:
        session = self._session
        if session is None:
            return []
        outputs = []
        for result in session.take_results():
            try:
                outputs.append(self.core.update(result))
                self.steps.settled(result)
            except ResultMismatchError as error:
                session.end(str(error))
                break
            self._fruitless_sessions = 0
            self._learn(self._sent.popleft(), result)
        return outputs

    def _learn(self, plan: StepPlan, result: StepResult) -> None:
        """Tells the core what computing and copying cost, when that has changed."""
        rates = self._rates.observe(plan, result)
        if rates is not None:
            self.core.set_rates(
                prefill_tokens_per_s=rates.prefill_tokens_per_s, copy_bytes_per_s=rates.copy_bytes_per_s
            )

    def _notice_loss(self, now_ns: int) -> tuple[End, ...]:
        session = self._session
        if session is None or session.ended is None:
            return ()
        log.warning("worker lost", worker=self._worker.address, why=session.ended, running=self.core.num_running)
        self._session = None
        self._sent.clear()
        self._lost_at_ns = now_ns
        self._fruitless_sessions += self.core.num_running > 0
        self._on_session(False)
        return self._requeue_all(self._capacity)

    def _requeue_all(self, capacity: wire.WorkerCapacity) -> tuple[End, ...]:
        return self.core.requeue_all(capacity.num_blocks, capacity.num_host_blocks)

    def _adopt_session(self) -> tuple[End, ...]:
        """Takes over a session that the connector opened, with the block pool that its worker has."""
        if self._session is not None or self._next_session is None:
            return ()
        capacity, session = self._next_session
        self._next_session = None
        ends: tuple[End, ...] = ()
        before = self._capacity
        if (capacity.num_blocks, capacity.num_host_blocks) != (before.num_blocks, before.num_host_blocks):
            ends = self._requeue_all(capacity)
        self._capacity = capacity
        self._session = session
        session.epoch = self.core.epoch
        self._lost_at_ns = None
        self.num_sessions += 1
        log.info("session open", worker=self._worker.address, blocks=capacity.num_blocks, session=self.num_sessions)
        self._on_session(True)
        return ends

    def _fail_after_grace(self, now_ns: int) -> tuple[End, ...]:
        """Without a worker nothing waits longer than the grace; and what breaks every session is not tried forever."""
        if self._session is not None or not self.core.num_waiting:
            return ()
        fruitless = self._fruitless_sessions >= _MAX_FRUITLESS_SESSIONS
        if not fruitless and (self._lost_at_ns is None or now_ns - self._lost_at_ns < self._grace_ns):
            return ()
        self._fruitless_sessions = 0
        ends = self.core.finish_all(EndReason.WORKER_LOST)
        log.error("requests fail for want of a worker", failed=len(ends), sessions_broke_at_once=fruitless)
        return ends

    @property
    def _grace_ns(self) -> int:
        return int(self._config.worker_grace_s * 1e9)

    def _plan(self) -> list[Started]:
        """Sends plans as long as the core has any."""
        started: list[Started] = []
        while self._session is not None and isinstance(plan := self.core.schedule(), StepPlan):
            started += [
                Started(sequence_id=admission.sequence_id, cached_tokens=admission.num_computed_tokens)
                for admission in plan.admissions
            ]
            self.steps.planned(plan)
            self._sent.append(plan)
            self._session.send(plan)
        return started

    async def _sleep(self) -> None:
        """Waits for a message, a result or the end of a session, but not past a deadline or the grace."""
        until_ns = [self.core.next_deadline_ns] if self.core.next_deadline_ns is not None else []
        if self._session is None and self.core.num_waiting and self._lost_at_ns is not None:
            until_ns.append(self._lost_at_ns + self._grace_ns)
        timeout_s = max(0.0, (min(until_ns) - time.monotonic_ns()) / 1e9) if until_ns else None
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _keep_connected(self) -> None:
        """Opens a session, waits for its end, and begins again."""
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                session = await self._connect()
            except (WorkerUnavailableError, wire.CapacityError) as error:
                if str(error) != self._why_not_connected:
                    self._why_not_connected = str(error)
                    log.warning("no session with the worker", worker=self._worker.address, why=str(error))
            else:
                opened = time.monotonic()
                self._wake.set()
                await session.wait_ended()
                self._why_not_connected = session.ended or ""
                if time.monotonic() - opened >= _LAST_RETRY_S:
                    retry_s = _FIRST_RETRY_S
            # Also after a session: one that ends at once would be opened again at once, for ever.
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    async def _connect(self) -> WorkerSession:
        capacity = await self._worker.capacity(_CAPACITY_TIMEOUT_S)
        if capacity.config_digest != self._capacity.config_digest:
            raise wire.CapacityError("the worker serves another model or configuration than the one before")
        limits = wire.SessionLimits(
            num_blocks=capacity.num_blocks,
            num_host_blocks=capacity.num_host_blocks,
            num_rows=self.core.config.max_num_seqs,
            max_num_batched_tokens=self.core.config.max_num_batched_tokens,
            max_model_len=self._config.max_model_len,
        )
        session = await self._worker.open_session(capacity, limits, self._wake.set)
        self._next_session = (capacity, session)
        return session


def _updates(
    now_ns: int, started: list[Started], rejected: list[Rejected], outputs: list[StepOutput], ends: list[End]
) -> list[StepUpdate]:
    """One update per settled step, so that a sequence has at most one token in each; the last has the rest."""
    if not outputs and (started or rejected or ends):
        outputs = [StepOutput()]
    updates = []
    for index, output in enumerate(outputs):
        last = index == len(outputs) - 1
        updates.append(
            StepUpdate(
                now_ns=now_ns,
                started=tuple(started) if last else (),
                rejected=tuple(rejected) if last else (),
                sequence_ids=output.sequence_ids,
                token_ids=output.token_ids,
                logprobs=output.logprobs,
                top_tokens=output.top_tokens,
                top_logprobs=output.top_logprobs,
                ends=output.ends + (tuple(ends) if last else ()),
            )
        )
    return updates
