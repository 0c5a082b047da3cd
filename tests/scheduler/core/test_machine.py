"""Properties of the core under arbitrary use, with tiny pools so that preemption and eviction are common."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
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
from scheduler.core.sequence import Sampling, SequenceSpec
from tests.scheduler.core import toy_model
from tests.scheduler.core.lab import Lab

_MIN_STEPS = 20_000
_MIN_EVENTS = 50
_HEADS = ((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1), (1, 2, 3, 4, 11, 10, 9, 8, 7, 6, 5, 4))
_TAILS = ((), (5,), (5, 5, 5, 5, 5), (7, 7, 7, 7))
"""Prompts are put together from these, so that they often share a prefix, on branches of several depths."""


_HOST_BLOCKS = {"recompute": (0, 4), "swap": (16, 4, 40, 2, 1), "auto": (16, 40, 4, 1, 0)}


@st.composite
def configs(draw: st.DrawFn, mode: str) -> CoreConfig:
    """Tiny limits. A pool of a few small blocks is dry most of the time."""
    max_num_seqs = draw(st.sampled_from((3, 2, 4, 5, 1)))
    block_size = draw(st.sampled_from((3, 2, 4, 1)))
    num_blocks = max(draw(st.integers(16, 48)) // block_size, 4)
    return CoreConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 10)),
        max_plans_in_flight=draw(st.sampled_from((2, 1, 4))),
        enable_prefix_caching=draw(st.sampled_from((True, True, False))),
        num_host_blocks=draw(st.sampled_from(_HOST_BLOCKS[mode])),
        bytes_per_block=1000,
        policy=draw(st.sampled_from(("priority", "priority", "fcfs"))),
        preemption_mode=mode,
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
    """Calls the core's verbs in any order; the lab checks every answer.

    mode: of preemption; None takes what is drawn. totals: what was tried, over all runs.
    """

    mode: ClassVar[str | None] = None
    totals: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.lab: Lab | None = None
        self.now_ns = 0
        self.next_id = 0

    @property
    def _lab(self) -> Lab:
        assert self.lab is not None
        return self.lab

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.lab = Lab(data.draw(configs(self.mode or data.draw(st.sampled_from(list(_HOST_BLOCKS))))))

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
                    # Of the sequences of one request, the first has the prompt scored for all.
                    sampling=Sampling(num_prompt_logprobs=0 if seed == 3 and not (together and copy) else None),
                )
            )
        if together:
            self._lab.add(*specs)
        else:
            for spec in specs:
                self._lab.add(spec)

    @precondition(lambda self: self.next_id)
    @rule(which=st.integers(0, 30), num_dropped=st.none() | st.integers(0, 2))
    def end(self, which: int, num_dropped: int | None) -> None:
        """Any sequence that ever was, so often one that has ended: its caller leaves, or a stop string is found."""
        sequence_id = 1 + which % self.next_id
        if num_dropped is not None and len(self._lab.outputs.get(sequence_id, ())) > num_dropped:
            if sequence_id in self._lab.live:
                self._lab.stop(sequence_id, num_dropped)
        else:
            self._lab.finish(sequence_id, EndReason.ABORT)

    @precondition(lambda self: self.lab and self.lab.core.num_waiting)
    @rule(which=st.integers(0, 30), deaths=st.sampled_from((0, 0, 1, 2)), at_once=st.booleans())
    def move(self, which: int, deaths: int, at_once: bool) -> None:
        """A waiting sequence leaves for another worker, and what left first comes from there."""
        waiting = list(self._lab.core.waiting)
        self._lab.withdraw(waiting[which % len(waiting)].spec.sequence_id)
        if self._lab.away and (at_once or len(self._lab.away) > 2):
            self.totals["moves"] += 1
            self._lab.adopt(more_deaths=deaths)

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

    @rule(turns=st.lists(st.booleans(), min_size=8, max_size=40))
    def run(self, turns: list[bool]) -> None:
        """A stretch of service: plans and results in any order that the pipeline allows."""
        for plans in turns:
            if plans or not self._lab.undelivered:
                self._lab.schedule()
            else:
                self._lab.deliver()
            self._lab.check()

    @precondition(lambda self: self.lab and self.lab.live)
    @rule(row=st.sampled_from((None, None, 0, 0, 1, 2, 3)))
    def break_row(self, row: int | None) -> None:
        """Now and then a row's KV comes out broken; those who share it must not go down with it."""
        self._lab.schedule(faulty_row=row)

    @rule(copying_is_cheap=st.booleans())
    def measure(self, copying_is_cheap: bool) -> None:
        """New rates for the cost model."""
        self._lab.set_rates(1000, 10**9 if copying_is_cheap else 1000)

    @precondition(lambda self: self.lab and self.lab.live)
    @rule(
        happens=st.sampled_from((False, False, True)),
        change=st.sampled_from((0, 0, -3, 4)),
        host=st.sampled_from((None, None, None, 0, 2, 8)),
    )
    def lose_worker(self, happens: bool, change: int, host: int | None) -> None:
        if not happens:
            return
        self.totals["losses"] += 1
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
        while self.lab.away:
            self.lab.adopt()
        self.lab.drain()
        self.lab.check()
        self.lab.check_empty()
        self.lab.replay()
        counters = self.lab.core.counters
        self.totals["steps"] += self.lab.num_steps
        self.totals["preemptions"] += counters.preemptions
        self.totals["swaps"] += counters.preemptions_swap
        self.totals["swapped in"] += counters.swapped_in_blocks
        self.totals["forks"] += counters.forks
        self.totals["hits"] += counters.prefix_cache_hits
        self.totals["ended by faults"] += sum(end.reason is EndReason.NON_FINITE for end in self.lab.ends.values())
        self.totals["faults"] += self.lab.num_faults


@pytest.mark.timeout(900)  # half a minute on a quiet machine
def test_any_use_of_the_core_keeps_its_promises() -> None:
    totals: Counter[str] = Counter()
    for mode in _HOST_BLOCKS:
        run_state_machine_as_test(
            type(f"{mode.title()}Machine", (CoreMachine,), {"mode": mode, "totals": totals}),
            settings=settings(
                derandomize=True,
                database=None,
                deadline=None,
                max_examples=150,
                stateful_step_count=40,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
    print(dict(totals))
    assert totals["steps"] >= _MIN_STEPS, "too little was tried to mean anything"
    often = ("preemptions", "swaps", "swapped in", "forks", "hits", "faults", "losses", "moves", "ended by faults")
    assert all(totals[event] >= _MIN_EVENTS for event in often), f"something was hardly ever tried: {totals}"
