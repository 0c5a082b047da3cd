"""One worker's lane: its core, the session with it, and the plans in flight.

The stream is the session: when it ends, every sequence waits again in the core, from its tokens, until the link has
found the worker again or the fleet has moved the sequence elsewhere. A worker whose oldest plan is overdue is hung, and
its stream is dropped like a broken one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import structlog

from scheduler import wire
from scheduler.core.errors import ResultMismatchError
from scheduler.core.handover import Handover, blocks_needed, look, movable
from scheduler.core.live import LiveSequence
from scheduler.core.placement import SUSPECT_PATIENCE_NS, Unit, WorkerView
from scheduler.core.plan import Idle, StepPlan, Waiting
from scheduler.core.result import End, EndReason, StepOutput
from scheduler.core.scheduler import Scheduler
from scheduler.messages import Started
from scheduler.pipeline import Pipeline
from scheduler.rates import RateMeter
from scheduler.step_feed import StepTap
from scheduler.step_timeout import StepTimeout, Watchdog
from scheduler.worker_client import WorkerSession
from scheduler.worker_link import WorkerLink

# A request that kills its worker at once costs three sessions until it is known; a worker that none survives on is
# given up after a few more.
_MAX_FRUITLESS_SESSIONS = 6
# Units of one worker that are looked at in a turn; of one that does not serve all are.
_MAX_OFFERED = 4

log = structlog.get_logger()


class WorkerLane:
    """One worker. Called by the engine's task alone.

    number: in the order in which workers joined. capacity: as far as it is known. leaving: gets nothing new.
    num_sessions, num_losses, num_hangs: sessions opened, lost, and dropped over an overdue step, since the start.
    """

    def __init__(
        self,
        number: int,
        link: WorkerLink,
        core: Scheduler,
        capacity: wire.WorkerCapacity,
        tap: StepTap,
        *,
        step_timeout: StepTimeout,
        now_ns: int,
    ) -> None:
        self.number = number
        self.link = link
        self.core = core
        self.leaving = False
        self.num_sessions = self.num_losses = self.num_hangs = 0
        self._capacity = capacity
        self._tap = tap
        self._step_timeout = step_timeout
        self._rates = RateMeter(capacity.bytes_per_block)
        self._watchdog = Watchdog(step_timeout)
        self._session: WorkerSession | None = None
        self._pipeline = Pipeline(core)
        self._away_since_ns: int | None = now_ns
        self._idle_since_ns: int | None = None
        self._fruitless_sessions = 0

    # -- views -------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """HOST:PORT of the worker."""
        return self.link.address

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return self._session is not None

    @property
    def serves(self) -> bool:
        """Whether the worker computes what it gets: there is a session, and it is not on its way out."""
        return self.connected and not self.leaving

    @property
    def num_restarts(self) -> int:
        """Sessions after the first."""
        return max(self.num_sessions - 1, 0)

    @property
    def num_live(self) -> int:
        """Sequences that the worker's core holds."""
        return self.core.num_running + self.core.num_swapped + self.core.num_waiting

    def makes_progress(self, now_ns: int) -> bool:
        """Whether there is a session and what can run runs: no step is overdue, and plans are in flight if anything is
        to be done."""
        stalled_ns = 0 if self._idle_since_ns is None else now_ns - self._idle_since_ns
        return self.connected and stalled_ns < self._step_timeout.budget_ns(0)

    def view(self, now_ns: int) -> WorkerView:
        """The worker as placement sees it."""
        core, limit = self.core, self.core.config.max_num_waiting_tokens
        return WorkerView(
            number=self.number,
            away_ns=None if self.serves else now_ns - (self._away_since_ns or now_ns),
            proven=self._fruitless_sessions == 0,
            num_blocks=core.blocks.pool.num_blocks,
            num_free_blocks=core.blocks.pool.num_free,
            free_rows=core.config.max_num_seqs - core.num_running,
            num_sequences=self.num_live,
            num_waiting=core.num_waiting,
            num_suspects=core.num_suspects,
            num_tokens=core.num_pending_tokens,
            free_queue=core.config.max_num_waiting - core.num_waiting,
            free_queue_tokens=None if limit is None else limit - core.num_waiting_tokens,
        )

    def units(self, lanes: Iterable[WorkerLane]) -> Iterator[Unit]:
        """What may move, in order of service; of a worker that serves without suspects the first few."""
        offered = 0
        seen: set[int] = set()
        for sequence in self.core.waiting:
            if sequence.spec.sequence_id in seen:
                continue
            together = movable(sequence)
            if not together:
                continue
            seen.update(one.spec.sequence_id for one in together)
            yield unit_of(tuple(map(look, together)), sequence, lanes)
            offered += 1
            if offered == _MAX_OFFERED and self.connected and not (self.leaving or self.core.num_suspects):
                return

    def wake_times_ns(self, grace_ns: int) -> Iterator[int]:
        """When something is due that no message announces."""
        if self.core.next_deadline_ns is not None:
            yield self.core.next_deadline_ns
        if self._watchdog.deadline_ns is not None:
            yield self._watchdog.deadline_ns
        if self._idle_since_ns is not None:
            yield self._idle_since_ns + self._step_timeout.budget_ns(0)
        if self._away_since_ns is not None and self.core.num_waiting and self._session is None:
            yield self._away_since_ns + grace_ns
            if self.core.num_suspects:
                yield self._away_since_ns + SUSPECT_PATIENCE_NS

    # -- the parts of a turn -----------------------------------------------------------------------------------------

    def settle(self, now_ns: int) -> list[StepOutput]:
        """Takes the results that came."""
        session = self._session
        if session is None:
            return []
        outputs = []
        for result in session.take_results():
            try:
                outputs.append(self.core.update(result))
            except ResultMismatchError as error:
                session.end(str(error))
                break
            self._tap.settled(result)
            plan, answered = self._pipeline.settle(result)
            if answered:
                self._watchdog.settled(now_ns)
            self._fruitless_sessions = 0
            rates = self._rates.observe(plan, result)
            if rates is not None:
                self.core.set_rates(
                    prefill_tokens_per_s=rates.prefill_tokens_per_s, copy_bytes_per_s=rates.copy_bytes_per_s
                )
        return outputs

    def keep_up(self, now_ns: int) -> tuple[End, ...]:
        """Lets deadlines pass, drops the stream of a hung worker, and notices the loss and the coming of sessions."""
        ends: tuple[End, ...] = ()
        deadline_ns = self.core.next_deadline_ns
        if deadline_ns is not None and deadline_ns <= now_ns:
            ends = self.core.expire(now_ns)
        self._drop_if_hung(now_ns)
        return ends + self._notice_loss(now_ns) + self._adopt_session()

    def fail_after_grace(self, now_ns: int, grace_ns: int) -> tuple[End, ...]:
        """Without a worker nothing waits longer than the grace; and what breaks every session is not tried forever."""
        if self._session is not None or not self.core.num_waiting:
            return ()
        fruitless = self._fruitless_sessions >= _MAX_FRUITLESS_SESSIONS
        if not fruitless and (self._away_since_ns is None or now_ns - self._away_since_ns < grace_ns):
            return ()
        self._fruitless_sessions = 0
        ends = self.core.finish_all(EndReason.WORKER_LOST)
        log.error(
            "requests fail for want of a worker",
            worker=self.address,
            failed=len(ends),
            sessions_broke_at_once=fruitless,
        )
        return ends

    def plan(self, now_ns: int) -> list[Started]:
        """Sends plans as long as the core has any."""
        started: list[Started] = []
        while self._session is not None and (plans := self._pipeline.next_message(self._schedule)):
            started += [
                Started(sequence_id=admission.sequence_id, cached_tokens=admission.num_computed_tokens)
                for plan in plans
                for admission in plan.admissions
            ]
            self._watchdog.sent(_num_tokens(plans), now_ns)
            self._session.send(plans)
        stalled = self._session is not None and not self._pipeline.oldest and self.num_live > 0
        self._idle_since_ns = (self._idle_since_ns or now_ns) if stalled else None
        return started

    def _schedule(self) -> StepPlan | Waiting | Idle:
        plan = self.core.schedule()
        if isinstance(plan, StepPlan):
            self._tap.planned(plan)
        return plan

    def leave(self, now_ns: int) -> None:
        """Gets nothing new from now on; what runs may end here."""
        self.leaving = True
        if self._away_since_ns is None:
            self._away_since_ns = now_ns

    def stay(self) -> None:
        """Takes part again."""
        self.leaving = False
        if self.connected:
            self._away_since_ns = None

    def pardon(self, ns: int) -> None:
        """This process itself stood still so long."""
        self._watchdog.pardon(ns)

    def _drop_if_hung(self, now_ns: int) -> None:
        deadline_ns, session = self._watchdog.deadline_ns, self._session
        if session is None or session.ended is not None or deadline_ns is None or now_ns < deadline_ns:
            return
        self.num_hangs += 1
        plans, timeout = self._pipeline.oldest, self._step_timeout
        tokens = _num_tokens(plans)
        session.end(
            f"step {plans[0].step_id} ({tokens} tokens) is overdue: no result within "
            f"--step-timeout {timeout.base_s:g} s + {tokens} x --step-timeout-per-token {timeout.per_token_s:g} s"
        )

    def _notice_loss(self, now_ns: int) -> tuple[End, ...]:
        session = self._session
        if session is None or session.ended is None:
            return ()
        log.warning("worker lost", worker=self.address, why=session.ended, running=self.core.num_running)
        self._session = None
        self._pipeline.clear()
        self._watchdog = Watchdog(self._step_timeout)
        self._away_since_ns = now_ns
        self._idle_since_ns = None
        self.num_losses += 1
        self._fruitless_sessions += self.core.num_running > 0
        return self._requeue_all()

    def _adopt_session(self) -> tuple[End, ...]:
        """Takes over a session that the link has opened, with the block pool that its worker has."""
        opened = self.link.take_session() if self._session is None else None
        if opened is None:
            return ()
        ends: tuple[End, ...] = ()
        before = self._capacity
        self._capacity, session = opened
        after = self._capacity
        if (after.num_blocks, after.num_host_blocks) != (before.num_blocks, before.num_host_blocks):
            ends = self._requeue_all()
        self._session = session
        session.epoch = self.core.epoch
        if not self.leaving:
            self._away_since_ns = None
        self.num_sessions += 1
        log.info("session open", worker=self.address, blocks=after.num_blocks, session=self.num_sessions)
        return ends

    def _requeue_all(self) -> tuple[End, ...]:
        return self.core.requeue_all(self._capacity.num_blocks, self._capacity.num_host_blocks)


def _num_tokens(plans: Sequence[StepPlan]) -> int:
    return sum([sum(plan.num_tokens) for plan in plans])


def unit_of(handovers: tuple[Handover, ...], sequence: LiveSequence, lanes: Iterable[WorkerLane]) -> Unit:
    """What placement looks at of sequences that move together, the given one first."""
    lanes = list(lanes)
    spec, block_size = sequence.spec, lanes[0].core.config.block_size
    return Unit(
        sequence_id=spec.sequence_id,
        num_tokens=len(sequence.token_ids),
        blocks_needed=blocks_needed(handovers, block_size),
        num_sequences=len(handovers),
        cached=cached_tokens(sequence.token_ids, spec.cache_salt, lanes),
        num_deaths=sequence.num_deaths,
        suspect=handovers[0].is_suspect,
    )


def cached_tokens(token_ids: Sequence[int], cache_salt: str, lanes: Iterable[WorkerLane]) -> dict[int, int]:
    """How many leading tokens each worker has cached, by its number; those that have none are left out."""
    found = {}
    for lane in lanes:
        num_blocks = len(lane.core.blocks.find(token_ids, cache_salt))
        if num_blocks:
            found[lane.number] = num_blocks * lane.core.config.block_size
    return found
