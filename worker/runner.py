"""Executes a step: the one place where rows, cache, model and sampler meet."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from worker.device_io import DeviceIO, Stopwatch
from worker.device_sampler import Sampler, make_sampler
from worker.input_batch import InputBatch, build_input_batch
from worker.kv_cache import KVCache
from worker.logit_adjuster import Adjustments
from worker.models.model import Change, Model, SamplingModel
from worker.prompt_scorer import Scoring, score
from worker.sampler import NO_CHANGES, Sampled, SamplingColumns
from worker.sequence_table import Grammars, SequenceTable
from worker.step import Limits, PromptScores, RowFlag, StepPlan, StepResult, no_ints


class Runner:
    """A loaded model and its KV cache. It knows no rows: they belong to the stream whose plan it executes."""

    def __init__(self, model: Model, kv_cache: KVCache, io: DeviceIO, grammars: Grammars | None = None) -> None:
        """io: of the device that holds both. grammars: what rows with a grammar need; None if there may be none."""
        self._grammars = grammars
        self._model = model
        self._kv_cache = kv_cache
        self._io = io
        self._sample_logits: Sampler = make_sampler(io)
        self._sample = self._forward_and_sample
        if isinstance(model, SamplingModel):
            self._sample_logits, self._sample = model.sample_logits, model.sample

    def new_table(self, limits: Limits) -> SequenceTable:
        """Rows for the plans of one stream."""
        return SequenceTable(limits, self._grammars)

    def execute(self, table: SequenceTable, plan: StepPlan) -> StepResult:
        """Computes the plan's tokens and samples. Raises PlanError where the plan does not fit the table's rows; after
        this or any other error the table must not be used again."""
        start = time.perf_counter_ns()
        table.apply(plan)
        copying = self._copy_blocks(plan)
        batch = build_input_batch(table, plan, self._kv_cache.spec.block_size, self._io)
        columns, adjustments, scoring = table.sampling(plan), table.adjustments(plan), table.scoring(plan)
        scores = None
        if scoring is not None:
            hidden, to_score = self._hidden_states(batch, scoring)
            logits = self._model.project(hidden)
            changes = NO_CHANGES if adjustments is None else adjustments.apply(logits, self._io)
            sampled = self._sample_logits(logits, columns, changes)
            scores = score(to_score, self._model.project, scoring, self._io)
        else:
            change = None if adjustments is None else partial(adjustments.apply, io=self._io)
            sampled = self._sample(batch, self._kv_cache, columns, change)
        table.commit(plan, sampled.tokens)
        # A step that samples nothing has not waited yet; its duration is the device's all the same.
        self._io.wait()
        execute_ns = time.perf_counter_ns() - start
        copy_ns = copying.nanoseconds() if copying else 0
        return _result(plan, sampled, adjustments, scores, execute_ns, copy_ns)

    def _hidden_states(self, batch: InputBatch, scoring: Scoring) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states of the rows that sample [R, C], and of those that predict the tokens to be scored [P, C]."""
        num_rows = batch.logits_indices.numel()
        places = self._io.upload({"places": scoring.places})["places"]
        both = replace(batch, logits_indices=torch.cat([batch.logits_indices, places]))
        hidden = self._model.hidden_states(both, self._kv_cache)
        return hidden[:num_rows], hidden[num_rows:]

    def _forward_and_sample(
        self, batch: InputBatch, kv_cache: KVCache, columns: SamplingColumns, change: Change | None = None
    ) -> Sampled:
        logits = self._model.forward(batch, kv_cache)
        return self._sample_logits(logits, columns, NO_CHANGES if change is None else change(logits))

    def _copy_blocks(self, plan: StepPlan) -> Stopwatch | None:
        """Performs the plan's phases of block copies, one after the other. -> their time, None if there are none."""
        if not (plan.swap_out.sources.size or plan.swap_in.sources.size or plan.copy_on_write.sources.size):
            return None
        cache = self._kv_cache
        phases = (
            (cache.swap_out, plan.swap_out),
            (cache.swap_in, plan.swap_in),
            (cache.copy_on_write, plan.copy_on_write),
        )
        copying = self._io.stopwatch()
        for copy, copies in phases:
            if copies.sources.size:
                copy(copies.sources, copies.destinations)
        copying.stop()
        return copying


def _result(
    plan: StepPlan,
    sampled: Sampled,
    adjustments: Adjustments | None,
    scores: PromptScores | None,
    execute_ns: int,
    copy_ns: int,
) -> StepResult:
    num_sampled, tokens, flags = plan.max_samples, sampled.tokens, no_ints()
    if not sampled.finite.all():
        num_sampled = plan.max_samples.copy()
        num_sampled[plan.max_samples > 0] = sampled.finite
        tokens = sampled.tokens[sampled.finite]
        of_sampled = np.where(sampled.finite, RowFlag.OK, RowFlag.NON_FINITE).astype(np.int32)
        if adjustments is not None:
            adjustments.flag(of_sampled)
        flags = np.zeros(plan.rows.size, np.int32)
        flags[plan.max_samples > 0] = of_sampled
    return StepResult(
        step_id=plan.step_id,
        num_sampled=num_sampled,
        tokens=tokens,
        logprobs=sampled.logprobs,
        num_top=sampled.num_top,
        top_tokens=sampled.top_tokens,
        top_logprobs=sampled.top_logprobs,
        flags=flags,
        execute_ns=execute_ns,
        copy_ns=copy_ns,
        scores=scores,
    )
