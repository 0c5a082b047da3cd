"""Translation between the core's plans and results and the messages of the step plane. Nothing else knows both."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from octavo.worker.v1alpha1 import worker_pb2 as pb
from scheduler.core.plan import Admission, BlockCopies, StepPlan
from scheduler.core.result import RowFlag, StepResult
from scheduler.core.sequence import Sampling

_T = TypeVar("_T")

PROTOCOL_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """What a worker says of itself, as far as the scheduler uses it. Lengths in tokens.

    num_blocks: on the device. num_host_blocks: in host memory, for swapped sequences; 0 if the worker cannot swap.
    """

    num_blocks: int
    num_host_blocks: int
    block_size: int
    bytes_per_block: int
    logits_width: int
    max_model_len: int
    architecture: str
    dtype: str
    tokenizer_digest: bytes
    weights_digest: bytes
    config_digest: bytes


class CapacityError(Exception):
    """The worker is one that this scheduler cannot drive."""


def read_capacity(message: pb.GetCapacityResponse) -> WorkerCapacity:
    """Raises CapacityError if the worker speaks another protocol version or has what is not supported yet."""
    if message.protocol_version != PROTOCOL_VERSION:
        raise CapacityError(f"the worker speaks protocol version {message.protocol_version}, not {PROTOCOL_VERSION}")
    if len(message.kv_groups) != 1:
        raise CapacityError(f"the worker has {len(message.kv_groups)} KV groups; 1 is supported")
    if message.world_size != 1:
        raise CapacityError(f"the worker is one of {message.world_size} ranks; 1 is supported")
    group = message.kv_groups[0]
    return WorkerCapacity(
        num_blocks=message.num_device_blocks,
        num_host_blocks=message.num_host_blocks,
        block_size=group.block_size,
        bytes_per_block=group.bytes_per_block,
        logits_width=message.logits_width,
        max_model_len=message.max_model_len,
        architecture=message.architecture,
        dtype=message.dtype,
        tokenizer_digest=message.tokenizer_digest,
        weights_digest=message.weights_digest,
        config_digest=message.config_digest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """What plans of a session will use at most."""

    num_blocks: int
    num_host_blocks: int
    num_rows: int
    max_num_batched_tokens: int
    max_model_len: int


def open_message(capacity: WorkerCapacity, limits: SessionLimits, group_epoch: int) -> pb.ExecuteRequest:
    """The first message of a session."""
    return pb.ExecuteRequest(
        open=pb.Open(
            protocol_version=PROTOCOL_VERSION,
            config_digest=capacity.config_digest,
            num_device_blocks=limits.num_blocks,
            num_host_blocks=limits.num_host_blocks,
            group_epoch=group_epoch,
            num_rows=limits.num_rows,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
        )
    )


def plans_message(plans: Sequence[StepPlan]) -> pb.ExecuteRequest:
    """Plans, as packed columns."""
    request = pb.ExecuteRequest()
    for plan in plans:
        _write_plan(request.plans.plans.add(), plan)
    return request


def _write_plan(message: pb.StepPlan, plan: StepPlan) -> None:
    # Filled in place, and only what says something is touched: most plans are decodes, and made while the worker
    # computes on the same processors.
    message.step_id = plan.step_id
    scheduled = message.scheduled
    scheduled.rows.extend(plan.rows)
    scheduled.num_tokens.extend(plan.num_tokens)
    scheduled.max_samples.extend(plan.max_samples)
    if plan.released_rows:
        message.released_rows.extend(plan.released_rows)
    if plan.admissions:
        message.admissions.extend(map(_admission, plan.admissions))
    if plan.swap_out:
        _set_copies(message.swap_out, plan.swap_out)
    if plan.swap_in:
        _set_copies(message.swap_in, plan.swap_in)
    if plan.copy_on_write:
        _set_copies(message.copy_on_write, plan.copy_on_write)
    if plan.edit_rows:
        edits = message.table_edits
        edits.rows.extend(plan.edit_rows)
        edits.indices.extend(plan.edit_indices)
        edits.blocks.extend(plan.edit_blocks)


def _set_copies(message: pb.BlockCopies, copies: BlockCopies) -> None:
    message.sources.extend(copies.sources)
    message.destinations.extend(copies.destinations)


def _admission(admission: Admission) -> pb.Admission:
    return pb.Admission(
        sequence_id=admission.sequence_id,
        row=admission.row,
        num_prompt_tokens=admission.num_prompt_tokens,
        token_ids=admission.token_ids,
        block_tables=[pb.BlockTable(blocks=admission.blocks)],
        num_computed_tokens=admission.num_computed_tokens,
        sampling=_sampling(admission.sampling),
        adapter_id=admission.adapter_id,
        seed=admission.seed,
        output_index=admission.output_index,
        num_scored_tokens=admission.num_scored_tokens,
    )


def _sampling(sampling: Sampling) -> pb.Sampling:
    return pb.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        num_logprobs=sampling.num_logprobs,
        min_tokens=sampling.min_tokens,
        masked_token_ids=sampling.masked_token_ids,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        bias_token_ids=[token_id for token_id, _ in sampling.logit_bias],
        biases=[bias for _, bias in sampling.logit_bias],
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=[pb.TokenSequence(token_ids=token_ids) for token_ids in sampling.bad_words],
        grammar=sampling.grammar,
        eos_token_ids=sampling.eos_token_ids,
        num_prompt_logprobs=sampling.num_prompt_logprobs,
    )


def read_result(message: pb.StepResult, epoch: int) -> StepResult:
    """A result that came on a stream of the given epoch. Whether it answers a plan is the core's to check."""
    return StepResult(
        epoch=epoch,
        step_id=message.step_id,
        num_sampled=tuple(message.num_sampled),
        tokens=tuple(message.tokens),
        logprobs=tuple(message.logprobs),
        top_tokens=_split(message.top_tokens, message.num_top),
        top_logprobs=_split(message.top_logprobs, message.num_top),
        flags=tuple(map(RowFlag, message.flags)),
        execute_ns=message.execute_ns,
        copy_ns=message.copy_ns,
        num_scored=tuple(message.num_scored),
        scored_logprobs=tuple(message.scored_logprobs),
        scored_top_tokens=_split(message.scored_top_tokens, message.scored_num_top),
        scored_top_logprobs=_split(message.scored_top_logprobs, message.scored_num_top),
    )


def _split(values: Sequence[_T], counts: Sequence[int]) -> tuple[tuple[_T, ...], ...]:
    """The values in groups of these sizes."""
    if not counts:
        return ()
    ends = list(itertools.accumulate(counts))
    return tuple([tuple(values[end - count : end]) for end, count in zip(ends, counts, strict=True)])
