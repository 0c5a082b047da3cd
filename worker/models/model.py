"""What the runner asks of a model, in whatever form it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from worker.input_batch import InputBatch
from worker.kv_cache import KVCache
from worker.sampler import NO_CHANGES, Changes, Sampled, SamplingColumns

Change = Callable[[torch.Tensor], Changes]
"""Changes logits [R, V] float32 in place, and says of them what a sampler must know."""


class Model(Protocol):
    """A loaded decoder on its device. R rows are wanted of a batch, V is the width of the logits."""

    def forward(self, batch: InputBatch, kv_cache: KVCache) -> torch.Tensor:
        """Computes the step's tokens, writing their keys and values to the cache. -> logits [R, V] float32 of
        batch.logits_indices, in their order; [0, V] if there are none."""
        ...

    def hidden_states(self, batch: InputBatch, kv_cache: KVCache) -> torch.Tensor:
        """`forward` up to the vocabulary projection. -> [R, C] in the activations' type."""
        ...

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [r, C], rows of `hidden_states` -> logits [r, V] float32, with the bits that `forward` gives."""
        ...


@runtime_checkable
class SamplingModel(Protocol):
    """A model that also samples, which may spare it the logits."""

    def sample(
        self, batch: InputBatch, kv_cache: KVCache, columns: SamplingColumns, change: Change | None = None
    ) -> Sampled:
        """`forward`, and a token for each of the R rows as `worker.sampler` defines it. change: is given the logits
        [R, V] in between, to write into."""
        ...

    def sample_logits(self, logits: torch.Tensor, columns: SamplingColumns, changes: Changes = NO_CHANGES) -> Sampled:
        """The tokens that `sample` draws from logits [R, V], which may be written into."""
        ...
