"""Properties of the core under arbitrary use, with tiny pools so that preemption and eviction are common."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler.core.config import CoreConfig
from scheduler.core.result import EndReason
from scheduler.core.sequence import SequenceSpec
from tests.scheduler.core import toy_model
from tests.scheduler.core.lab import Lab

_MIN_STEPS = 20_000
_HEADS = ((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1), (1, 2, 3, 4, 11, 10, 9, 8, 7, 6, 5, 4))
_TAILS = ((), (5,), (5, 5, 5, 5, 5), (7, 7, 7, 7))
"""Prompts are put together from these, so that they often share a prefix, on branches of several depths."""

_totals = dict.fromkeys(("steps", "preemptions", "swaps", "forks", "hits", "faults", "losses", "ended by faults"), 0)


@st.composite
def configs(draw: st.DrawFn) -> CoreConfig:
    """Tiny limits. A pool of a few small blocks is dry most of the time."""
    max_num_seqs = draw(st.integers(1, 5))
    num_blocks = draw(st.integers(4, 16))
    return CoreConfig(
        num_blocks=num_blocks,
        block_size=draw(st.sampled_from((3, 2, 4, 1))),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 10)),
        max_plans_in_flight=draw(st.sampled_from((2, 1))),
        enable_prefix_caching=draw(st.sampled_from((True, True, False))),
        num_host_blocks=draw(st.sampled_from((8, 3, 1, 0))),
        bytes_per_block=1000,
        policy=draw(st.sampled_from(("priority", "priority", "fcfs"))),
        preemption_mode=draw(st.sampled_from(("swap", "auto", "recompute"))),
        max_overtakes=draw(st.sampled_from((0, 1, 4))),
        max_num_waiting=draw(st.sampled_from((100, 100, 3))),
        watermark=min(draw(st.sampled_from((0, 0, 1, 2))), num_blocks - 1),
    )


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    """A piece of a head and a tail, now and then something else altogether."""
    head = draw(st.sampled_from(_HEADS))[: draw(st.sampled_from((12, 8, 4)))]
    tail = draw(st.sampled_from(_TAILS) | st.lists(st.integers(1, 11), max_size=4).map(tuple))
    return draw(st.sampled_from((head + tail, head + tail, head + tail, tail or (9,))))


class CoreMachine(RuleBasedStateMachine):
    """Calls the core's verbs in any order; the lab checks every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.lab: Lab | None = None
        self.now_ns = 0
        self.next_id = 0

    @property
    def _lab(self) -> Lab:
        assert self.lab is not None
        return self.lab

    @initialize(config=configs())
    def start(self, config: CoreConfig) -> None:
        self.lab = Lab(config)

    @rule(
        prompt=prompts(),
        max_tokens=st.integers(1, 24),
        open_ended=st.sampled_from((False, False, False, True)),
        priority=st.sampled_from((0, 0, 0, 1, -1)),
        salt=st.sampled_from(("",) * 7 + ("pepper",)),
        stop=st.sampled_from((frozenset({toy_model.EOS}), frozenset(), frozenset({toy_model.EOS, 5}))),
        seed=st.integers(0, 3),
        patience_ns=st.sampled_from((None, None, None, 1, 5)),
        copies=st.sampled_from((1, 2, 3)),
        together=st.booleans(),
    )
    def add(
        self,
        prompt: tuple[int, ...],
        max_tokens: int,
        open_ended: bool,
        priority: int,
        salt: str,
        stop: frozenset[int],
        seed: int,
        patience_ns: int | None,
        copies: int,
        together: bool,
    ) -> None:
        specs = []
        for copy in range(copies):
            self.next_id += 1
            specs.append(
                SequenceSpec(
                    sequence_id=self.next_id,
                    prompt=prompt,
                    max_tokens=100 if open_ended else max_tokens + copy % 2,
                    open_ended=open_ended,
                    stop_token_ids=stop,
                    seed=seed + copy,
                    priority=priority,
                    cache_salt=salt,
                    deadline_ns=None if patience_ns is None else self.now_ns + patience_ns,
                )
            )
        if together:
            self._lab.add(*specs)
        else:
            for spec in specs:
                self._lab.add(spec)

    @precondition(lambda self: self.next_id)
    @rule(which=st.integers(0, 30))
    def abort(self, which: int) -> None:
        """Any sequence that ever was, so often one that has ended."""
        self._lab.finish(1 + which % self.next_id, EndReason.ABORT)

    @rule(ns=st.integers(0, 2))
    def pass_time(self, ns: int) -> None:
        self.now_ns += ns
        self._lab.expire(self.now_ns)

    @rule()
    def schedule(self) -> None:
        self._lab.schedule()

    @precondition(lambda self: self.lab and self.lab.undelivered)
    @rule()
    def deliver(self) -> None:
        self._lab.deliver()

    @rule(turns=st.lists(st.booleans(), min_size=4, max_size=24))
    def run(self, turns: list[bool]) -> None:
        """A stretch of service: plans and results in any order that the pipeline allows."""
        for plans in turns:
            if plans or not self._lab.undelivered:
                self._lab.schedule()
            else:
                self._lab.deliver()
            self._lab.check()

    @precondition(lambda self: self.lab and self.lab.live)
    @rule(row=st.sampled_from((0, 0, 1, 2, 3)))
    def break_row(self, row: int) -> None:
        """A row's KV comes out broken; those who share it must not go down with it."""
        self._lab.schedule(faulty_row=row)

    @rule(copying_is_cheap=st.booleans())
    def measure(self, copying_is_cheap: bool) -> None:
        """New rates for the cost model."""
        self._lab.set_rates(1000, 10**9 if copying_is_cheap else 1000)

    @precondition(lambda self: self.lab and self.lab.live)
    @rule(change=st.sampled_from((0, 0, -3, 4)), host=st.sampled_from((None, None, 0, 2)))
    def lose_worker(self, change: int, host: int | None) -> None:
        _totals["losses"] += 1
        self._lab.lose_worker(max(2, self._lab.config.num_blocks + change), host)

    @precondition(lambda self: self.lab and self.lab.stale)
    @rule()
    def deliver_stale(self) -> None:
        self._lab.deliver_stale()

    @invariant()
    def holds(self) -> None:
        if self.lab is not None:
            self.lab.check()

    def teardown(self) -> None:
        if self.lab is None:
            return
        self.lab.drain()
        self.lab.check()
        self.lab.check_empty()
        self.lab.replay()
        counters = self.lab.core.counters
        _totals["steps"] += self.lab.num_steps
        _totals["preemptions"] += counters.preemptions
        _totals["swaps"] += counters.preemptions_swap
        _totals["forks"] += counters.forks
        _totals["hits"] += counters.prefix_cache_hits
        _totals["ended by faults"] += sum(end.reason is EndReason.NON_FINITE for end in self.lab.ends.values())
        _totals["faults"] += self.lab.num_faults


def test_any_use_of_the_core_keeps_its_promises() -> None:
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=520,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    print(_totals)
    assert _totals["steps"] >= _MIN_STEPS, "too little was tried to mean anything"
    assert all(_totals.values()), f"something was never tried: {_totals}"
