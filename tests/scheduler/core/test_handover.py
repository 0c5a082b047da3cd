"""Sequences that move from one worker's core to another's; what they bring along in general is in test_machine.py."""

from __future__ import annotations

from scheduler.core.config import CoreConfig
from scheduler.core.sequence import Sampling, SequenceSpec
from tests.scheduler.core.lab import Lab


def test_logprobs_of_a_prompt_are_given_once_though_its_worker_dies_between_two_chunks() -> None:
    lab = Lab(CoreConfig(num_blocks=32, block_size=4, max_num_seqs=4, max_num_batched_tokens=8))
    scored = Sampling(num_prompt_logprobs=0)
    lab.add(SequenceSpec(sequence_id=1, prompt=tuple(range(1, 11)) * 2, max_tokens=2, sampling=scored))
    lab.schedule()
    lab.deliver()
    assert 0 < lab.scored[1] < 19
    lab.lose_worker(32)
    lab.withdraw(1)
    lab.adopt()
    lab.drain()  # the lab checks that each position comes once and in order, and that all 19 have come by the end
    assert [end.sequence_id for end in lab.ends.values()] == [1]
