"""Scales of a KV cache in float8 (e4m3), one per layer, key/value head, and keys or values.

They are measured when the worker starts: the model computes a fixed sequence of random tokens into a cache of its own
type, and each head's largest magnitude, times a margin for what real text may bring, is mapped to the type's largest
number. float8 has the same relative precision over five orders of magnitude, so the margin costs next to nothing, and a
value beyond it is stored as the largest. Scales are powers of two: dividing by one loses no bits, and rounding noise of
the measurement does not change it, so a worker that restarts reads and writes the same numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from worker.device_io import DeviceIO
from worker.input_batch import InputBatch
from worker.kv_cache import KVCache, KVCacheSpec, KVScales
from worker.loader.load import LoadedModel

FP8 = torch.float8_e4m3fn

_MARGIN = 4.0
_LENGTH = 512
"""Tokens of the sequence: some thousands of values per head, from positions near and far."""


def measure_kv_scales(loaded: LoadedModel, spec: KVCacheSpec, io: DeviceIO, max_model_len: int) -> list[KVScales]:
    """Scales for a cache of the given geometry, by layer."""
    length = min(_LENGTH, max_model_len)
    num_blocks = -(-length // spec.block_size)
    cache = KVCache(replace(spec, dtype=loaded.dtype), num_blocks, io.device)
    loaded.model.forward(_sequence(length, num_blocks, loaded.config.vocab_size, io), cache)
    return [
        (_scales(keys, length), _scales(values, length)) for keys, values in zip(cache.keys, cache.values, strict=True)
    ]


def _sequence(length: int, num_blocks: int, vocab_size: int, io: DeviceIO) -> InputBatch:
    token_ids = np.random.Generator(np.random.Philox(8)).integers(vocab_size, size=length)
    return InputBatch(
        **io.upload(
            {
                "token_ids": token_ids,
                "positions": np.arange(length, dtype=np.int32),
                "slot_mapping": np.arange(length, dtype=np.int64),
                "query_start_loc": np.array([0, length], np.int32),
                "seq_lens": np.array([length], np.int32),
                "block_tables": np.arange(num_blocks, dtype=np.int32)[None],
                "logits_indices": np.empty(0, np.int64),
            }
        )
    )


def _scales(cache: torch.Tensor, length: int) -> torch.Tensor:
    """cache [N, G, B, D], its first `length` slots written -> [G] float32."""
    by_head = cache.transpose(0, 1).flatten(1, 2)[:, :length]  # [G, length, D]
    largest = by_head.float().abs().amax(dim=(1, 2))
    exponents = torch.log2(largest * _MARGIN / torch.finfo(FP8).max).ceil()
    # A head that is zero throughout has no exponent; one that overflowed has no finite one.
    return torch.where(torch.isfinite(exponents), torch.exp2(exponents), 1.0)
