"""The requests of the whole model, for us and for the peer: random token ids, exact lengths, a fixed seed."""

from __future__ import annotations

import random

from bench.gpu_check.sizes import Sizes

_FIRST = 256  # leaves out the ids that tokenizers use for bytes


def prompts(sizes: Sizes, streams: int) -> list[list[int]]:
    """Token ids of each stream's prompt."""
    rng = random.Random(f"gpu-check {streams}")
    return [[rng.randrange(_FIRST, sizes.model.vocab) for _ in range(sizes.prompt)] for _ in range(streams)]
