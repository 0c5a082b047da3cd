"""Philox4x32-10: random words as a pure function of (key, counter).

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The words equal those of
`tl.philox(seed, c0, c1, c2, c3)` of Triton, bit for bit.

The draw for one token of one output position:
    key     = (seed & 0xffffffff, seed >> 32)
    counter = (c0, output index, purpose, 0)        with c0 = (token >> 10) << 8 | (token & 255)
    word    = word number (token >> 8) & 3 of the four that Philox gives
    uniform = ((word >> 9) + 0.5) * 2**-23           exact in float32, in (0, 1), never 0 and never 1
    gumbel  = -log(-log(uniform))                    in float32
One Philox call so serves four tokens that lie 256 apart, and whole vocabularies are contiguous in tokens and counters.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

PURPOSE_TOKEN = 0
"""Third counter word of the draw of a token; other purposes get other numbers, so that draws never coincide."""

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
MASK = 0xFFFFFFFF
ROUNDS = 10


def philox(c0: Words, c1: int, c2: int, c3: int, key: int) -> tuple[Words, Words, Words, Words]:
    """The four words for each of the counters (c0[i], c1, c2, c3), each [N], under a 64-bit key."""
    shift = np.uint64(32)
    x0: Words = c0
    x1, x2, x3 = (np.full(c0.shape, word & MASK, np.uint32) for word in (c1, c2, c3))
    k0, k1 = key & MASK, (key >> 32) & MASK
    for _ in range(ROUNDS):
        product_0 = x0 * np.uint64(MULTIPLIER_0)
        product_1 = x2 * np.uint64(MULTIPLIER_1)
        x0 = (product_1 >> shift).astype(np.uint32) ^ x1 ^ np.uint32(k0)
        x2 = (product_0 >> shift).astype(np.uint32) ^ x3 ^ np.uint32(k1)
        x1, x3 = product_1.astype(np.uint32), product_0.astype(np.uint32)
        k0, k1 = (k0 + WEYL_0) & MASK, (k1 + WEYL_1) & MASK
    return x0, x1, x2, x3


def gumbel_of_tokens(tokens: npt.NDArray[np.int64], seed: int, output_index: int) -> npt.NDArray[np.float32]:
    """Standard Gumbel noise [N] of the given token ids [N] at an output index."""
    lanes = (tokens >> 8) & 3
    c0 = ((tokens >> 10) << 8 | (tokens & 255)).astype(np.uint32)
    words = np.stack(philox(c0, output_index, PURPOSE_TOKEN, 0, seed))
    return _gumbel(words[lanes, np.arange(tokens.size)])


def gumbel_of_vocabulary(width: int, seed: int, output_index: int) -> npt.NDArray[np.float32]:
    """The same for all token ids 0 .. width - 1, [width], with a quarter of the work."""
    num_groups = -(-width // 1024)
    c0 = np.arange(num_groups * 256, dtype=np.uint32)
    words = philox(c0, output_index, PURPOSE_TOKEN, 0, seed)
    by_token = np.stack([word.reshape(num_groups, 256) for word in words], axis=1)  # [groups, lane, 256]
    return _gumbel(by_token.reshape(-1)[:width])


def _gumbel(words: Words) -> npt.NDArray[np.float32]:
    uniform = (words >> np.uint32(9)).astype(np.float32)
    uniform += np.float32(0.5)
    uniform *= np.float32(2.0**-23)
    noise = np.log(uniform, out=uniform)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)
