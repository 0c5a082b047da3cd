"""A deterministic model whose next token depends on every token before it, in order.

The fingerprint of a prefix stands for the KV of its last token: real KV, too, is a function of the token and all that
came before. Two prefixes share a fingerprint only if they are equal (up to a 64-bit collision).
"""

from __future__ import annotations

from scheduler.core.result import EndReason
from scheduler.core.sequence import SequenceSpec

VOCABULARY = 12
EOS = 0
EMPTY = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def extend(fingerprint: int, token: int) -> int:
    """Fingerprint of a prefix after one more token."""
    mixed = (fingerprint ^ (token + 1)) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ (mixed >> 29)) * 0x94D049BB133111EB & _MASK
    return mixed ^ (mixed >> 32)


def fingerprints(tokens: tuple[int, ...]) -> list[int]:
    """Fingerprint of every prefix, the one-token prefix first."""
    chain, current = [], EMPTY
    for token in tokens:
        current = extend(current, token)
        chain.append(current)
    return chain


def sample(fingerprint: int, seed: int, output_index: int) -> int:
    """The token after a prefix: a function of the prefix, the seed and the output index."""
    return extend(extend(fingerprint, seed), output_index) % VOCABULARY


def generate(spec: SequenceSpec) -> tuple[tuple[int, ...], EndReason]:
    """The whole output of a sequence that nothing disturbs, and why it ends."""
    fingerprint = fingerprints(spec.prompt)[-1]
    output: list[int] = []
    while len(output) < spec.max_tokens:
        token = sample(fingerprint, spec.seed, len(output))
        output.append(token)
        if token in spec.stop_token_ids:
            return tuple(output), EndReason.STOP
        fingerprint = extend(fingerprint, token)
    return tuple(output), EndReason.LENGTH
