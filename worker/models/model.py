"""What the runner asks of a model, in whatever form it runs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from worker.input_batch import InputBatch
from worker.kv_cache import KVCache
from worker.sampler import Sampled, SamplingColumns


class Model(Protocol):
    """A loaded decoder on its device. R rows are wanted of a batch, V is the width of the logits."""

    def forward(self, batch: InputBatch, kv_cache: KVCache) -> torch.Tensor:
        """Computes the step's tokens, writing their keys and values to the cache. -> logits [R, V] float32 of
        batch.logits_indices, in their order; [0, V] if there are none."""
        ...


@runtime_checkable
class SamplingModel(Protocol):
    """A model that also samples, which may spare it the logits."""

    def sample(self, batch: InputBatch, kv_cache: KVCache, columns: SamplingColumns) -> Sampled:
        """`forward`, and a token for each of the R rows as `worker.sampler` defines it."""
        ...
