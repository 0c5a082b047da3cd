"""A long random run of the core on a toy worker, the same for the same seed.

`python -m tests.scheduler.core.random_run SEED NUM_REQUESTS` prints a digest of every answer that the core gave.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from hashlib import sha256

from scheduler.core.config import CoreConfig
from scheduler.core.result import EndReason
from scheduler.core.sequence import SequenceSpec
from tests.scheduler.core import toy_model
from tests.scheduler.core.lab import Lab

_CONFIG = CoreConfig(
    num_blocks=96,
    block_size=4,
    max_num_seqs=32,
    max_num_batched_tokens=96,
    max_num_waiting=64,
    num_host_blocks=24,
    bytes_per_block=1000,
)
_STEPS_BETWEEN_CHECKS = 100
MAX_N = 4


def random_run(*, seed: int, num_requests: int) -> Lab:
    """Serves short requests, some of which are cancelled or run out of time, until all have ended."""
    dice = random.Random(seed)
    lab = Lab(_CONFIG)
    heads = [tuple(dice.choices(range(1, toy_model.VOCABULARY), k=16)) for _ in range(8)]
    now_ns = added = 0
    while added < num_requests:
        for _ in range(min(dice.randint(0, 8), num_requests - added)):
            request = random_request(added, dice, heads, now_ns)
            if lab.core.num_waiting + len(request) <= _CONFIG.max_num_waiting:
                added += 1
                lab.add(*request)
        if dice.random() < 0.3 and lab.live:
            lab.finish(dice.choice(list(lab.live)), EndReason.ABORT)
        stoppable = [id_ for id_ in lab.live if len(lab.outputs[id_]) > 2]
        if dice.random() < 0.1 and stoppable:
            lab.stop(dice.choice(stoppable), dice.randint(0, 2))
        now_ns += 1
        lab.expire(now_ns)
        for _ in range(2):
            if lab.undelivered and dice.random() < 0.5:
                lab.deliver()
            else:
                lab.schedule()
        if now_ns % _STEPS_BETWEEN_CHECKS == 0:
            lab.check()
    lab.drain()
    return lab


def random_request(
    number: int, dice: random.Random, heads: list[tuple[int, ...]], now_ns: int
) -> tuple[SequenceSpec, ...]:
    """A short request, now and then of several sequences. No two numbers share an id."""
    tail = tuple(dice.choices(range(1, toy_model.VOCABULARY), k=dice.randint(1, 8)))
    first = SequenceSpec(
        sequence_id=number * MAX_N,
        prompt=dice.choice(heads)[: dice.randint(0, 16)] + tail,
        max_tokens=dice.randint(1, 12),
        stop_token_ids=frozenset({toy_model.EOS}),
        seed=dice.randrange(1 << 32),
        priority=dice.choice((0, 0, 0, 1)),
        cache_salt=dice.choice(("", "", "pepper")),
        deadline_ns=now_ns + dice.randint(1, 400) if dice.random() < 0.2 else None,
    )
    n = dice.choice((1,) * 8 + (2, MAX_N))
    return tuple(replace(first, sequence_id=first.sequence_id + i, seed=first.seed + i) for i in range(n))


def digest(lab: Lab) -> str:
    """Of all answers of the core, in order."""
    return sha256("\n".join(repr(record.answer) for record in lab.records).encode()).hexdigest()


if __name__ == "__main__":
    print(digest(random_run(seed=int(sys.argv[1]), num_requests=int(sys.argv[2]))))
