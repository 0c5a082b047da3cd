"""The workloads, the same for us and every peer: fixed seeds, random token ids, exact lengths. Standard library only.

All requests of a batch are sent at once. Every batch of a round has token ids of its own, so that no engine finds
anything of an earlier one in its prefix cache; lengths do not change.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

VOCABULARY = 49152
"""Width of SmolLM2's logits. Ids below 17 are its special tokens and are left out."""
_FIRST_ORDINARY = 17

THREADS = 2
MAX_NUM_SEQS = 64
MAX_MODEL_LEN = 8192
"""What every engine is given: threads that compute, sequences at a time, positions of the model."""
KV_CACHE_TOKENS = 46_592
"""What every engine's KV cache holds: 1 GiB in bf16. The greatest batch, W3's, needs 36,864."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and the number of tokens to generate, greedily and past EOS."""

    prompt: tuple[int, ...]
    num_output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is run: one batch after the other, each with nothing else in the engine.

    name: the workload, "@" and the number of streams where it has several. title: for people.
    """

    name: str
    title: str
    prefix_caching: bool = True
    batches: tuple[Callable[[random.Random], list[Request]], ...]

    def requests(self, batch: int, round_number: int) -> list[Request]:
        """The requests of a batch, in a round (0 is the warm-up)."""
        return self.batches[batch](random.Random(f"{self.name} {batch} {round_number}"))


def _streams(count: int, num_prompt: int, num_output: int) -> Callable[[random.Random], list[Request]]:
    """Requests of equal lengths that share no prefix."""
    return lambda rng: [Request(prompt=_ids(rng, num_prompt), num_output=num_output) for _ in range(count)]


def _mixed(rng: random.Random) -> list[Request]:
    """64 requests of lognormal lengths: prompts of 168 tokens in the mean, outputs of 98."""
    lengths = random.Random("W1 lengths 49")  # the means of this sample are nearest to those of the distribution
    prompts = [_lognormal(lengths, median=130, sigma=0.8, low=16, high=512) for _ in range(64)]
    outputs = [_lognormal(lengths, median=80, sigma=0.7, low=16, high=256) for _ in range(64)]
    return [
        Request(prompt=_ids(rng, prompt), num_output=output) for prompt, output in zip(prompts, outputs, strict=True)
    ]


def _shared_prefix(rng: random.Random) -> list[Request]:
    """64 requests of 512 tokens in common and 32 of their own each."""
    prefix = _ids(rng, 512)
    return [Request(prompt=prefix + _ids(rng, 32), num_output=32) for _ in range(64)]


def _lognormal(rng: random.Random, *, median: float, sigma: float, low: int, high: int) -> int:
    return min(max(round(rng.lognormvariate(math.log(median), sigma)), low), high)


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(_FIRST_ORDINARY, VOCABULARY) for _ in range(count))


def _decode(count: int) -> Case:
    """The same prompts' lengths with 1 and with 128 tokens of output: the difference is 127 steps of decoding."""
    return Case(
        name=f"W4@{count}",
        title=f"decode rate of {count} streams, 128 in, 128 out",
        batches=(_streams(count, 128, 1), _streams(count, 128, 128)),
    )


WORKLOADS = (
    Case(name="W1", title="64 requests at once, lognormal: 16-512 in, 16-256 out", batches=(_mixed,)),
    Case(name="W2", title="one stream, 128 in, 128 out", batches=(_streams(1, 128, 128),)),
    Case(
        name="W3-off",
        title="64 requests that share 512 of 544 tokens, 32 out, no prefix cache",
        prefix_caching=False,
        batches=(_shared_prefix,),
    ),
    Case(
        name="W3-on",
        title="64 requests that share 512 of 544 tokens, 32 out, prefix cache, cold",
        batches=(_shared_prefix,),
    ),
    _decode(8),
    _decode(16),
    _decode(32),
    Case(name="W5", title="one stream, 4000 in, 64 out", batches=(_streams(1, 4000, 64),)),
)


def warm_up(*, prefix_caching: bool) -> Case:
    """A long prompt, then some short ones at once."""
    return Case(
        name=f"warm-up-{'on' if prefix_caching else 'off'}",
        title="warm-up",
        prefix_caching=prefix_caching,
        batches=(_streams(1, 600, 4), _streams(16, 32, 4)),
    )


CASES: Mapping[str, Case] = {
    case.name: case for case in (*WORKLOADS, warm_up(prefix_caching=True), warm_up(prefix_caching=False))
}


def select(names: str) -> list[Case]:
    """Workloads by a comma-separated list of names or of their beginnings ("W3", "W4"); all for an empty one.

    Raises ValueError for a name that none has.
    """
    wanted = [name for name in names.split(",") if name]
    for name in wanted:
        if not any(_named(case, name) for case in WORKLOADS):
            raise ValueError(f"no workload is named {name!r}; there are {', '.join(case.name for case in WORKLOADS)}")
    return [case for case in WORKLOADS if not wanted or any(_named(case, name) for name in wanted)]


def _named(case: Case, name: str) -> bool:
    return case.name == name or case.name.startswith((f"{name}@", f"{name}-"))
