"""Executes a step: the one place where rows, cache, model and sampler meet."""

from __future__ import annotations

import time

import numpy as np

from worker.device_io import DeviceIO, Stopwatch
from worker.device_sampler import make_sampler
from worker.input_batch import InputBatch, build_input_batch
from worker.kv_cache import KVCache
from worker.models.model import Model, SamplingModel
from worker.sampler import Sampled, SamplingColumns
from worker.sequence_table import SequenceTable, sampling_rows
from worker.step import RowFlag, StepPlan, StepResult, no_ints


class Runner:
    """A loaded model and its KV cache. It knows no rows: they belong to the stream whose plan it executes."""

    def __init__(self, model: Model, kv_cache: KVCache, io: DeviceIO) -> None:
        """io: of the device that holds both."""
        self._model = model
        self._kv_cache = kv_cache
        self._io = io
        self._sample_logits = make_sampler(io)
        self._sample = model.sample if isinstance(model, SamplingModel) else self._forward_and_sample

    def execute(self, table: SequenceTable, plan: StepPlan) -> StepResult:
        """Computes the plan's tokens and samples. Raises PlanError where the plan does not fit the table's rows; after
        this or any other error the table must not be used again."""
        start = time.perf_counter_ns()
        table.apply(plan)
        copying = self._copy_blocks(plan)
        batch = build_input_batch(table, plan, self._kv_cache.spec.block_size, self._io)
        sampled = self._sample(batch, self._kv_cache, table.sampling(sampling_rows(plan)))
        table.commit(plan, sampled.tokens)
        # A step that samples nothing has not waited yet; its duration is the device's all the same.
        self._io.wait()
        execute_ns = time.perf_counter_ns() - start
        return _result(plan, sampled, execute_ns, copying.nanoseconds() if copying else 0)

    def _forward_and_sample(self, batch: InputBatch, kv_cache: KVCache, columns: SamplingColumns) -> Sampled:
        return self._sample_logits(self._model.forward(batch, kv_cache), columns)

    def _copy_blocks(self, plan: StepPlan) -> Stopwatch | None:
        """Performs the plan's phases of block copies, one after the other. -> their time, None if there are none."""
        cache = self._kv_cache
        phases = (
            (cache.swap_out, plan.swap_out),
            (cache.swap_in, plan.swap_in),
            (cache.copy_on_write, plan.copy_on_write),
        )
        if not any(copies.sources.size for _, copies in phases):
            return None
        copying = self._io.stopwatch()
        for copy, copies in phases:
            if copies.sources.size:
                copy(copies.sources, copies.destinations)
        copying.stop()
        return copying


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
