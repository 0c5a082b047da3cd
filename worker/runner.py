"""Executes a step: the one place where rows, cache, model and sampler meet."""

from __future__ import annotations

import time

import numpy as np
import torch

from worker.input_batch import InputBatch, build_input_batch
from worker.kv_cache import KVCache
from worker.models.model import Model, SamplingModel
from worker.sampler import Sampled, SamplingColumns, sample
from worker.sequence_table import SequenceTable, sampling_rows
from worker.step import RowFlag, StepPlan, StepResult, no_ints


class Runner:
    """A loaded model and its KV cache. It knows no rows: they belong to the stream whose plan it executes."""

    def __init__(self, model: Model, kv_cache: KVCache, device: torch.device) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._device = device
        self._sample = model.sample if isinstance(model, SamplingModel) else self._forward_and_sample

    def execute(self, table: SequenceTable, plan: StepPlan) -> StepResult:
        """Computes the plan's tokens and samples. Raises PlanError where the plan does not fit the table's rows; after
        this or any other error the table must not be used again."""
        start = time.perf_counter_ns()
        table.apply(plan)
        copy_ns = self._copy_blocks(plan)
        batch = build_input_batch(table, plan, self._kv_cache.spec.block_size, self._device)
        sampled = self._sample(batch, self._kv_cache, table.sampling(sampling_rows(plan)))
        table.commit(plan, sampled.tokens)
        return _result(plan, sampled, time.perf_counter_ns() - start, copy_ns)

    def _forward_and_sample(self, batch: InputBatch, kv_cache: KVCache, columns: SamplingColumns) -> Sampled:
        return sample(self._model.forward(batch, kv_cache), columns)

    def _copy_blocks(self, plan: StepPlan) -> int:
        """Performs the plan's phases of block copies, one after the other. -> nanoseconds, 0 if there are none."""
        cache = self._kv_cache
        phases = (
            (cache.swap_out, plan.swap_out),
            (cache.swap_in, plan.swap_in),
            (cache.copy_on_write, plan.copy_on_write),
        )
        if not any(copies.sources.size for _, copies in phases):
            return 0
        start = time.perf_counter_ns()
        for copy, copies in phases:
            copy(copies.sources.tolist(), copies.destinations.tolist())
        cache.synchronize()
        return time.perf_counter_ns() - start


def _result(plan: StepPlan, sampled: Sampled, execute_ns: int, copy_ns: int) -> StepResult:
    num_sampled = plan.max_samples.copy()
    num_sampled[plan.max_samples > 0] = sampled.finite
    flags = no_ints()
    if not sampled.finite.all():
        flags = np.where(num_sampled < plan.max_samples, RowFlag.NON_FINITE, RowFlag.OK).astype(np.int32)
    return StepResult(
        step_id=plan.step_id,
        num_sampled=num_sampled,
        tokens=sampled.tokens[sampled.finite],
        logprobs=sampled.logprobs,
        num_top=sampled.num_top,
        top_tokens=sampled.top_tokens,
        top_logprobs=sampled.top_logprobs,
        flags=flags,
        execute_ns=execute_ns,
        copy_ns=copy_ns,
    )
