"""Messages of the step plane to the worker's values and back; nothing else of the worker translates.

Everything a plan says is checked here against the stream's limits, before it can touch an array: lengths, ranges,
duplicates, and what this version does not accept. What depends on the rows is checked by `worker.sequence_table`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from octavo.worker.v1alpha1 import worker_pb2 as pb
from worker.step import (
    NO_COPIES,
    PROTOCOL_VERSION,
    Admission,
    BlockCopies,
    Capacity,
    IdColumn,
    IntColumn,
    Limits,
    LogitRules,
    Open,
    PlanError,
    PromptScores,
    Sampling,
    StepPlan,
    StepResult,
    no_ints,
)


def read_open(message: pb.Open) -> Open:
    """The opening of a session, not yet checked against the worker's capacity."""
    return Open(
        protocol_version=message.protocol_version,
        config_digest=message.config_digest,
        num_device_blocks=message.num_device_blocks,
        num_host_blocks=message.num_host_blocks,
        group_epoch=message.group_epoch,
        num_rows=message.num_rows,
        max_num_batched_tokens=message.max_num_batched_tokens,
        max_model_len=message.max_model_len,
    )


def read_plans(message: pb.StepPlans, limits: Limits) -> tuple[StepPlan, ...]:
    """The plans of a message, at least one. Raises as `read_plan`."""
    if not message.plans:
        raise PlanError("plans", "none", "a message of plans has at least 1")
    return tuple([read_plan(plan, limits) for plan in message.plans])


def read_plan(message: pb.StepPlan, limits: Limits) -> StepPlan:
    """A plan whose columns are within the stream's limits. Raises PlanError, naming column, value and limit."""
    released = _numbers("released_rows", message.released_rows, limits.num_rows, "rows")
    _distinct("released_rows", released)
    admissions = tuple(_read_admission(admission, limits) for admission in message.admissions)
    _distinct("admissions.row", [admission.row for admission in admissions])
    edit_rows, edit_indices, edit_blocks = _read_edits(message.table_edits, limits)
    rows, num_tokens, max_samples = _read_scheduled(message.scheduled, limits)
    return StepPlan(
        step_id=message.step_id,
        released_rows=_array(released),
        swap_out=_read_copies("swap_out", message.swap_out, _DEVICE, _HOST, limits),
        swap_in=_read_copies("swap_in", message.swap_in, _HOST, _DEVICE, limits),
        copy_on_write=_read_copies("copy_on_write", message.copy_on_write, _DEVICE, _DEVICE, limits),
        admissions=admissions,
        edit_rows=edit_rows,
        edit_indices=edit_indices,
        edit_blocks=edit_blocks,
        rows=rows,
        num_tokens=num_tokens,
        max_samples=max_samples,
    )


def write_results(results: Sequence[StepResult]) -> pb.ExecuteResponse:
    """The message of the results of a message's plans."""
    return pb.ExecuteResponse(results=pb.StepResults(results=map(_write_result, results)))


def _write_result(result: StepResult) -> pb.StepResult:
    return pb.StepResult(
        step_id=result.step_id,
        num_sampled=result.num_sampled.tolist(),
        tokens=result.tokens.tolist(),
        logprobs=result.logprobs.tolist(),
        num_top=result.num_top.tolist(),
        top_tokens=result.top_tokens.tolist(),
        top_logprobs=result.top_logprobs.tolist(),
        flags=result.flags.tolist(),
        execute_ns=result.execute_ns,
        copy_ns=result.copy_ns,
        **({} if result.scores is None else _scores(result.scores)),
    )


def _scores(scores: PromptScores) -> dict[str, list[Any]]:
    return {
        "num_scored": scores.num_scored.tolist(),
        "scored_logprobs": scores.logprobs.tolist(),
        "scored_num_top": scores.num_top.tolist(),
        "scored_top_tokens": scores.top_tokens.tolist(),
        "scored_top_logprobs": scores.top_logprobs.tolist(),
    }


def write_opened(group_epoch: int) -> pb.ExecuteResponse:
    """The message that confirms a session."""
    return pb.ExecuteResponse(opened=pb.Opened(group_epoch=group_epoch))


def write_capacity(capacity: Capacity) -> pb.GetCapacityResponse:
    """The message of a worker's capacity."""
    return pb.GetCapacityResponse(
        protocol_version=PROTOCOL_VERSION,
        rank=0,
        world_size=1,
        kv_groups=[
            pb.KvGroup(
                num_layers=capacity.num_layers,
                block_size=capacity.block_size,
                window=capacity.window,
                bytes_per_block=capacity.bytes_per_block,
            )
        ],
        num_device_blocks=capacity.num_device_blocks,
        num_host_blocks=capacity.num_host_blocks,
        logits_width=capacity.logits_width,
        max_model_len=capacity.max_model_len,
        architecture=capacity.architecture,
        dtype=capacity.dtype,
        tokenizer_digest=capacity.tokenizer_digest,
        weights_digest=capacity.weights_digest,
        config_digest=capacity.config_digest,
    )


def _read_edits(message: pb.TableEdits, limits: Limits) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Columns rows, indices and blocks."""
    if not message.rows and not message.indices and not message.blocks and not message.groups:
        return no_ints(), no_ints(), no_ints()
    _only_group_0("table_edits.groups", message.groups, len(message.rows))
    rows = _column("table_edits.rows", message.rows, limits.num_rows, "rows")
    indices = _column("table_edits.indices", message.indices, limits.max_blocks, "blocks per row")
    blocks = _column("table_edits.blocks", message.blocks, limits.num_device_blocks, "device blocks")
    _same_length("table_edits.indices", indices, "table_edits.rows", rows)
    _same_length("table_edits.blocks", blocks, "table_edits.rows", rows)
    return rows, indices, blocks


def _read_scheduled(message: pb.Scheduled, limits: Limits) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Columns rows, num_tokens and max_samples."""
    for name in ("num_forced", "forced_tokens", "num_drafts", "draft_tokens"):
        if getattr(message, name):
            raise PlanError(f"scheduled.{name}", f"{len(getattr(message, name))} entries", "it is not accepted yet")
    rows = _numbers("scheduled.rows", message.rows, limits.num_rows, "rows")
    if not rows:
        raise PlanError("scheduled.rows", "no row", "a plan must schedule at least one")
    _distinct("scheduled.rows", rows)
    num_tokens = _numbers("scheduled.num_tokens", message.num_tokens, limits.max_model_len + 1, "max_model_len + 1")
    max_samples = _numbers("scheduled.max_samples", message.max_samples, 2, "samples are 0 or 1")
    _same_length("scheduled.num_tokens", num_tokens, "scheduled.rows", rows)
    _same_length("scheduled.max_samples", max_samples, "scheduled.rows", rows)
    if 0 in num_tokens:
        raise PlanError("scheduled.num_tokens", 0, "a scheduled row computes at least 1")
    total = sum(num_tokens)
    if total > limits.max_num_batched_tokens:
        limit = f"a plan has at most max_num_batched_tokens = {limits.max_num_batched_tokens} tokens"
        raise PlanError("scheduled.num_tokens", f"{total} in sum", limit)
    return _array(rows), _array(num_tokens), _array(max_samples)


def _read_admission(message: pb.Admission, limits: Limits) -> Admission:
    name = f"admissions[sequence {message.sequence_id}]"
    _below(f"{name}.row", message.row, limits.num_rows, "rows")
    tokens = _column(f"{name}.token_ids", message.token_ids, limits.logits_width, "logits width")
    if not 1 <= tokens.size <= limits.max_model_len:
        limit = f"there must be 1 to max_model_len = {limits.max_model_len}"
        raise PlanError(f"{name}.token_ids", f"{tokens.size} tokens", limit)
    if not 1 <= message.num_prompt_tokens <= tokens.size:
        limit = f"it must be 1 to {tokens.size}, the number of token_ids"
        raise PlanError(f"{name}.num_prompt_tokens", message.num_prompt_tokens, limit)
    if len(message.block_tables) != 1:
        raise PlanError(f"{name}.block_tables", f"{len(message.block_tables)} tables", "there is one KV group")
    blocks = _column(f"{name}.block_tables", message.block_tables[0].blocks, limits.num_device_blocks, "device blocks")
    if blocks.size > limits.max_blocks:
        limit = f"max_model_len = {limits.max_model_len} tokens take at most {limits.max_blocks}"
        raise PlanError(f"{name}.block_tables", f"{blocks.size} blocks", limit)
    most_computed = min(tokens.size - 1, blocks.size * limits.block_size)
    if message.num_computed_tokens > most_computed:
        limit = f"{tokens.size} token_ids and {blocks.size} blocks allow at most {most_computed}"
        raise PlanError(f"{name}.num_computed_tokens", message.num_computed_tokens, limit)
    unscored = min(message.num_computed_tokens, message.num_prompt_tokens - 1) - message.num_scored_tokens
    if message.sampling.HasField("num_prompt_logprobs") and unscored > 0:
        limit = (
            f"num_scored_tokens is {message.num_scored_tokens}, the logprobs of {unscored} tokens could not be given"
        )
        raise PlanError(f"{name}.num_computed_tokens", message.num_computed_tokens, limit)
    if message.adapter_id:
        raise PlanError(f"{name}.adapter_id", message.adapter_id, "only 0, no adapter, is accepted yet")
    return Admission(
        sequence_id=message.sequence_id,
        row=message.row,
        num_prompt_tokens=message.num_prompt_tokens,
        token_ids=tokens,
        blocks=blocks,
        num_computed_tokens=message.num_computed_tokens,
        sampling=_read_sampling(f"{name}.sampling", message.sampling, limits),
        seed=message.seed,
        output_index=message.output_index,
        num_scored_tokens=message.num_scored_tokens,
    )


def _read_sampling(name: str, message: pb.Sampling, limits: Limits) -> Sampling:
    if not (math.isfinite(message.temperature) and message.temperature >= 0):
        raise PlanError(f"{name}.temperature", message.temperature, "it must be finite and at least 0")
    if not 0 < message.top_p <= 1:
        raise PlanError(f"{name}.top_p", message.top_p, "it must be in (0, 1]")
    if not 0 <= message.min_p <= 1:
        raise PlanError(f"{name}.min_p", message.min_p, "it must be in [0, 1]")
    num_logprobs = message.num_logprobs if message.HasField("num_logprobs") else None
    num_prompt_logprobs = message.num_prompt_logprobs if message.HasField("num_prompt_logprobs") else None
    for field, count in (("num_logprobs", num_logprobs), ("num_prompt_logprobs", num_prompt_logprobs)):
        if count is not None:
            _below(f"{name}.{field}", count, limits.logits_width + 1, "logits width")
    return Sampling(
        temperature=message.temperature,
        top_k=min(message.top_k, limits.logits_width),  # above the vocabulary is the same as off
        top_p=message.top_p,
        min_p=message.min_p,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        rules=_read_rules(name, message, limits),
    )


def _read_rules(name: str, message: pb.Sampling, limits: Limits) -> LogitRules | None:
    """What the row's logits are changed by; None if by nothing."""
    for field in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        value = getattr(message, field)
        if not math.isfinite(value) or (field == "repetition_penalty" and value < 0):
            raise PlanError(f"{name}.{field}", value, "it must be finite, and a repetition_penalty at least 0")
    if message.grammar and not message.eos_token_ids:
        raise PlanError(f"{name}.eos_token_ids", "no id", "a grammar needs one to end with")
    _same_length(f"{name}.biases", message.biases, f"{name}.bias_token_ids", message.bias_token_ids)
    biases = np.fromiter(message.biases, np.float32, len(message.biases))
    if not np.isfinite(biases).all():
        raise PlanError(f"{name}.biases", "a number that is not finite", "each must be finite")
    bad_words = tuple(tuple(word.token_ids) for word in message.bad_words)
    if not all(bad_words):
        raise PlanError(f"{name}.bad_words", "an empty sequence", "each has at least one token")
    if bad_words:
        _below(f"{name}.bad_words", max(map(max, bad_words)), limits.logits_width, "logits width")
    rules = LogitRules(
        min_tokens=message.min_tokens,
        masked_token_ids=_ids(f"{name}.masked_token_ids", message.masked_token_ids, limits),
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty or 1.0,
        bias_token_ids=_ids(f"{name}.bias_token_ids", message.bias_token_ids, limits),
        biases=biases,
        allowed_token_ids=_ids(f"{name}.allowed_token_ids", message.allowed_token_ids, limits),
        bad_words=bad_words,
        grammar=message.grammar,
        eos_token_ids=tuple(_ids(f"{name}.eos_token_ids", message.eos_token_ids, limits).tolist()),
    )
    return rules if _changes_logits(rules) else None


def _changes_logits(rules: LogitRules) -> bool:
    masks = rules.min_tokens and rules.masked_token_ids.size
    penalties = rules.presence_penalty or rules.frequency_penalty or rules.repetition_penalty != 1
    sets = rules.bias_token_ids.size or rules.allowed_token_ids.size
    return bool(masks or penalties or sets or rules.bad_words or rules.grammar)


def _ids(name: str, values: Sequence[int], limits: Limits) -> IdColumn:
    numbers = _numbers(name, values, limits.logits_width, "logits width")
    _distinct(name, numbers)
    return np.array(numbers, np.int64)


_DEVICE, _HOST = "device blocks", "host blocks"


def _read_copies(phase: str, message: pb.BlockCopies, source: str, destination: str, limits: Limits) -> BlockCopies:
    """A phase of copies between two pools, or within one."""
    if not (message.groups or message.sources or message.destinations):
        return NO_COPIES
    pools = {_DEVICE: limits.num_device_blocks, _HOST: limits.num_host_blocks}
    _only_group_0(f"{phase}.groups", message.groups, len(message.sources))
    sources = _numbers(f"{phase}.sources", message.sources, pools[source], source)
    destinations = _numbers(f"{phase}.destinations", message.destinations, pools[destination], destination)
    _same_length(f"{phase}.destinations", destinations, f"{phase}.sources", sources)
    _distinct(f"{phase}.destinations", destinations)
    if source == destination and not set(sources).isdisjoint(destinations):
        both = min(set(sources).intersection(destinations))
        raise PlanError(f"{phase}.destinations", both, "the block is a source of the same phase")
    return BlockCopies(sources=_array(sources), destinations=_array(destinations))


def _column(name: str, values: Sequence[int], limit: int, what: str) -> IntColumn:
    """The values as an array; each must be below the limit, `what` says of what."""
    return _array(_numbers(name, values, limit, what))


def _numbers(name: str, values: Sequence[int], limit: int, what: str) -> list[int]:
    """The values, checked. A column has some tens of them, for which lists and sets are faster than arrays."""
    numbers = list(values)
    if numbers:
        _below(name, max(numbers), limit, what)
    return numbers


def _array(numbers: list[int]) -> IntColumn:
    return np.fromiter(numbers, np.int32, len(numbers)) if numbers else no_ints()


def _below(name: str, value: int, limit: int, what: str) -> None:
    if value >= limit:
        raise PlanError(name, value, f"it must be below {limit} ({what})")


def _same_length(name: str, column: Sized, other_name: str, other: Sized) -> None:
    if len(column) != len(other):
        raise PlanError(name, f"{len(column)} entries", f"{other_name} has {len(other)}")


def _distinct(name: str, numbers: list[int]) -> None:
    if len(set(numbers)) < len(numbers):
        ordered = sorted(numbers)
        repeated = next(first for first, second in itertools.pairwise(ordered) if first == second)
        raise PlanError(name, repeated, "it may be given once only")


def _only_group_0(name: str, groups: Sequence[int], length: int) -> None:
    if groups and any(groups):
        raise PlanError(name, max(groups), "there is one KV group, 0")
    if groups and len(groups) != length:
        raise PlanError(name, f"{len(groups)} entries", f"the columns beside it have {length}")
