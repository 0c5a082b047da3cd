"""Who goes first, with real processes: urgent requests preempt, and cost those they preempt nothing but time."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from clients import DeltaStream
from clients.results import join
from tests.integration.checksums import assert_closed_form
from tests.integration.harness import Cluster, cluster, collect
from tests.oracle.tokenizer import VOCAB_SIZE
from tests.oracle.uniform import UniformOracle

LONG = 400


def random_prompt(seed: int, length: int = 40) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(VOCAB_SIZE, size=length).tolist()
    return ids


def submit(server: Cluster, prompt: list[int], *, max_tokens: int, priority: int | None = None) -> DeltaStream:
    return server.generate(
        token_ids=prompt,
        temperature=1.0,
        seed=5,
        max_tokens=max_tokens,
        ignore_eos=True,
        logprobs=5,
        priority=priority,
    )


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("scarce", ["rows", "blocks"])
def test_an_urgent_request_finishes_first_and_the_other_gets_all_the_same(
    uniform: UniformOracle, uniform_model: Path, tmp_path: Path, mode: str, scarce: str
) -> None:
    # Each of them needs 28 of the 30 blocks where these are scarce.
    args = ["--preemption-mode", mode, "--max-num-seqs", "1" if scarce == "rows" else "8"]
    pool = ["--num-gpu-blocks-override", "30", "--swap-space", "16MiB"]
    with cluster(uniform_model, tmp_path, worker_args=pool, scheduler_args=args) as server:
        slow_prompt, urgent_prompt = random_prompt(1), random_prompt(2, 40 if scarce == "rows" else 438)
        slow = submit(server, slow_prompt, max_tokens=LONG, priority=1)
        head = [next(slow)]
        with server.frozen_worker():  # else it might end before the urgent one comes
            stream = submit(server, urgent_prompt, max_tokens=10, priority=0)
            # A plan made ahead of the frozen worker's outcome may have preempted the other one already.
            server.wait_for(lambda stats: sum(astuple(stats.queues)) == 2, "both of them are there")
        urgent = collect(stream)
        counters = server.stats().counters
        assert (counters.finished, counters.preemptions) == (1, 1), "the urgent one has finished, the other has not"
        assert counters.preemptions_swap == (mode == "swap")
        assert_closed_form(uniform, urgent_prompt, urgent)
        completion = join(slow.request_id, [*head, *slow], slow.usage)
        assert len(completion.token_ids) == LONG
        assert_closed_form(uniform, slow_prompt, completion)
        server.wait_empty()


@pytest.mark.parametrize(("policy", "priority"), [("priority", 1), ("priority", 2), ("fcfs", -1)])
def test_nobody_gives_way_to_one_that_does_not_go_first(
    uniform_model: Path, tmp_path: Path, policy: str, priority: int
) -> None:
    args = ["--scheduling-policy", policy, "--max-num-seqs", "1"]
    pool = ["--num-gpu-blocks-override", "100"]
    with cluster(uniform_model, tmp_path, worker_args=pool, scheduler_args=args) as server:
        slow = submit(server, random_prompt(1), max_tokens=LONG, priority=1)
        next(slow)
        with server.frozen_worker():
            other = submit(server, random_prompt(2), max_tokens=10, priority=priority)
            server.wait_for(lambda stats: stats.queues.waiting == 1, "it waits")
        next(other)
        counters = server.stats().counters
        assert (counters.finished, counters.preemptions) == (1, 0), "it begins when the first has ended"
        assert len(collect(slow).token_ids) < LONG  # the rest of it, and none of it was lost
        collect(other)
        server.wait_empty()
