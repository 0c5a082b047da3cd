"""Drives a decoder as a worker's step would: sequences in one batch, their blocks scattered over the KV cache."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import torch

from worker.device_io import make_io
from worker.input_batch import InputBatch
from worker.kv_cache import KVCache, KVCacheSpec
from worker.kv_scales import FP8, measure_kv_scales
from worker.loader.load import LoadedModel

BLOCK_SIZE = 16


@dataclass(slots=True)
class _Row:
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0


class PagedModel:
    """Sequences by name. The cache is full of NaN at first, so that reading a slot nobody wrote shows in the logits."""

    def __init__(self, loaded: LoadedModel, device: torch.device, num_blocks: int = 64, *, fp8: bool = False) -> None:
        self.loaded = loaded
        self._io = make_io(device)
        config = loaded.config
        spec = KVCacheSpec(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=BLOCK_SIZE,
            dtype=FP8 if fp8 else loaded.dtype,
        )
        scales = None
        if fp8:
            scales = measure_kv_scales(loaded, spec, self._io, config.max_positions)
        self.kv_cache = KVCache(spec, num_blocks, device, scales=scales)
        for cache in (*self.kv_cache.keys, *self.kv_cache.values):
            cache.fill_(float("nan"))
        self._free = list(range(num_blocks))
        random.Random(0).shuffle(self._free)
        self._rows: dict[str, _Row] = {}

    def step(self, work: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """Computes tokens of some sequences in one step. -> logits [tokens, V] of each of them."""
        logits = self.loaded.model.forward(self.batch(work), self.kv_cache)
        return dict(zip(work, logits.split([len(tokens) for tokens in work.values()]), strict=True))

    def batch(self, work: dict[str, list[int]]) -> InputBatch:
        """The batch of such a step, in which all logits are wanted; the next one takes it as computed."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, seq_lens, tables = [0], [], []
        for name, tokens in work.items():
            row = self._rows.setdefault(name, _Row())
            length = row.num_computed + len(tokens)
            while len(row.blocks) * BLOCK_SIZE < length:
                row.blocks.append(self._free.pop())
            here = range(row.num_computed, length)
            token_ids += tokens
            positions += here
            slots += [row.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for position in here]
            starts.append(starts[-1] + len(tokens))
            seq_lens.append(length)
            tables.append(row.blocks)
            row.num_computed = length
        longest = max(len(table) for table in tables)
        columns = {
            "token_ids": np.array(token_ids),
            "positions": np.array(positions, np.int32),
            "slot_mapping": np.array(slots),
            "query_start_loc": np.array(starts, np.int32),
            "seq_lens": np.array(seq_lens, np.int32),
            "block_tables": np.array([table + [-1] * (longest - len(table)) for table in tables], np.int32),
            "logits_indices": np.arange(len(token_ids)),
        }
        return InputBatch(**self._io.upload(columns))

    def run(self, name: str, tokens: list[int], chunks: list[int]) -> torch.Tensor:
        """Computes a sequence alone, in chunks of the given lengths. -> logits [tokens, V]."""
        pieces = torch.tensor(tokens).split(chunks)
        return torch.cat([self.step({name: piece.tolist()})[name] for piece in pieces])

    def greedy(self, work: dict[str, list[int]], num_tokens: int) -> dict[str, list[int]]:
        """Computes the given tokens in one step, then continues all sequences together, one token a step."""
        generated: dict[str, list[int]] = {name: [] for name in work}
        for _ in range(num_tokens):
            logits = self.step(work)
            work = {name: [int(logits[name][-1].argmax())] for name in work}
            for name, tokens in work.items():
                generated[name] += tokens
        return generated
