"""Launch parameters of paged attention, chosen from the shape alone, each with its reason.

Decoding is bound by memory: what counts is bytes in flight. An H100 needs about 30 kB per multiprocessor (SM) on the
way to cover the latency of its memory at full speed (3.35 TB/s x 1 us / 132 SMs; an H200 40 kB, an A100 20 kB). Prefill
is bound by the tensor cores and by reading keys and values from the L2 cache: the more rows a tile has, the fewer of
those reads there are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kernels.triton.device import Gpu

MAX_SPLITS = 128
_START_BYTES = 64 << 10  # an SM moves as much while a program starts and fills its pipeline, about 2 us
_MERGE_BYTES = 144 << 10  # and while the second stage is launched and runs, about 4 us
_OTHER_SHARED_BYTES = 8 << 10  # of queries and weights in a program of the decode kernel
_ALONE = 1.5  # a program alone on an SM waits between its loads: it moves as much as 1 / 1.5 of what several do


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows (queries times heads of one KV head) and keys of a step of the inner loop, warps, pipeline stages, whether
    scores are computed a step ahead."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    ahead: bool = False


def next_power_of_2(n: int) -> int:
    """The least power of 2 that is at least n >= 1."""
    return 1 << (n - 1).bit_length()


@functools.cache
def decode_tile(gpu: Gpu, group: int, head_dim: int, cache_bytes: int) -> Tile:
    """cache_bytes: size of a cached element.

    16 rows are the least that the tensor cores take; a larger group of heads needs more. 16 kB of keys and as many of
    values in each step give four warps 8 loads of 16 bytes a thread.
    """
    block_m = max(16, next_power_of_2(group))
    block_d = next_power_of_2(head_dim)
    block_n = min(128, max(16, (16 << 10) // (block_d * cache_bytes)))
    return Tile(block_m, block_n, 4 if block_m <= 32 else 8, 3)


@functools.cache
def prefill_tile(gpu: Gpu, group: int, head_dim: int, query_bytes: int, has_window: bool, is_plain: bool) -> Tile:
    """query_bytes: size of a query's element. is_plain: without window, cap and float8.

    128 rows of 64 or 128 keys: with 64 rows, reading keys and values from L2 would take longer than the products. 8
    warps hold the output in registers, at most 128 a thread, with the scores beside it; where that is too much for 255
    registers, there are fewer keys or rows. On Hopper scores are computed a step ahead, which hides the exponentials
    behind products; there are registers for that with 64 keys, and none where a float8 cache is converted on the way:
    there, with 200 kB of shared memory, 128 keys a step halve what each step costs beside the products, but for masks
    on columns or of a window, which leave no registers either. Heads of 64 rather fit two programs to an SM, so that
    one computes products while the other takes exponentials. In float32 no tensor core takes part: small tiles, for
    registers.
    """
    if query_bytes == 4:
        return Tile(max(32, next_power_of_2(group)), 32, 8, 2)
    large = gpu.shared_bytes >= 200 << 10
    if head_dim <= 64:
        return Tile(128, 64, 8, 3)
    if gpu.capability == 90 and is_plain and head_dim <= 128:
        return Tile(128, 64, 8, 3, ahead=True)
    if head_dim == 128 and large and not has_window:
        return Tile(128, 128, 8, 2)
    if head_dim <= 128:
        return Tile(128, 64, 8, 3 if large else 2)
    if large:
        return Tile(128, 32, 8, 3)
    return Tile(max(64, next_power_of_2(group)), 32, 8, 2)


@functools.lru_cache(maxsize=4096)
def split_tokens(gpu: Gpu, tile: Tile, programs: int, max_tokens: int, token_bytes: int) -> int:
    """Keys per range of the decode kernel, a multiple of the tile's block_n.

    programs: sequences times KV heads; max_tokens: an upper bound of the keys that a sequence sees; token_bytes: keys
    and values of one token and KV head. Ranges are of equal length for all sequences of a step, so a long sequence
    gets many programs and a short one few. The length is the one that takes least time by this count: programs run in
    waves of as many as fit the GPU at once, each wave moves the bytes of its ranges after a start that costs
    _START_BYTES, and more than one range costs a merge. Few programs are therefore split until they fill the GPU; many
    are split only where that evens out the last wave. The constants are estimates, not measured.
    """
    shared = (tile.num_stages - 1) * tile.block_n * token_bytes + _OTHER_SHARED_BYTES
    per_sm = max(1, gpu.shared_bytes // shared)
    steps = -(-max_tokens // tile.block_n)
    best, best_cost = steps, None
    for wanted in range(1, min(MAX_SPLITS, steps) + 1):
        steps_each = -(-steps // wanted)
        total = programs * -(-steps // steps_each)
        waves = -(-total // (per_sm * gpu.num_sms))
        resident = min(per_sm, -(-total // gpu.num_sms))
        cost = waves * (steps_each * tile.block_n * token_bytes * max(resident, _ALONE) + _START_BYTES)
        cost += _MERGE_BYTES if wanted > 1 else 0
        if best_cost is None or cost < best_cost:
            best, best_cost = steps_each, cost
    return best * tile.block_n
