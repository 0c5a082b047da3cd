"""What the core refuses to take in."""

from __future__ import annotations

from collections.abc import Container

from scheduler.core.config import CoreConfig
from scheduler.core.errors import (
    DuplicateSequenceError,
    InvalidSequenceError,
    NeverFitsError,
    QueueFullError,
)
from scheduler.core.live import blocks_for
from scheduler.core.queues import WaitingQueue
from scheduler.core.sequence import SequenceSpec


def blocks_needed(spec: SequenceSpec, block_size: int) -> int:
    """Blocks of the whole sequence, or of the prompt if its end is open; the KV of its last token is never computed."""
    num_output = 1 if spec.open_ended else spec.max_tokens
    return blocks_for(len(spec.prompt) + num_output - 1, block_size)


def max_len_within(spec: SequenceSpec, num_blocks: int, block_size: int) -> int:
    """Tokens that a sequence may have with this pool, its prompt included; no more than that if it does not fit."""
    max_len = len(spec.prompt) + spec.max_tokens
    return min(max_len, num_blocks * block_size + 1) if spec.open_ended else max_len


def check_group(
    specs: tuple[SequenceSpec, ...], config: CoreConfig, num_blocks: int, waiting: WaitingQueue, live: Container[int]
) -> None:
    """Raises the domain error of whatever makes this group impossible."""
    if not specs:
        raise InvalidSequenceError("a group has at least one sequence", field="n", value=0, limit=1)
    if len(specs) > 1:
        _check_members(specs, config)
    for spec in specs:
        _check_spec(spec, specs[0], live)
    _check_fits(specs, config.block_size, num_blocks)
    _check_queue(specs, config, waiting)


def _check_members(specs: tuple[SequenceSpec, ...], config: CoreConfig) -> None:
    """What only a group of several can have wrong."""
    for name, why in (("max_num_seqs", "all are admitted together"), ("max_num_waiting", "all wait together")):
        limit = getattr(config, name)
        if len(specs) > limit:
            raise InvalidSequenceError(
                f"n is {len(specs)}, must be at most {limit} ({name}): {why}", field="n", value=len(specs), limit=limit
            )
    if len({spec.sequence_id for spec in specs}) < len(specs):
        raise DuplicateSequenceError("two sequences of a group have one id", field="sequence_id")


def _check_queue(specs: tuple[SequenceSpec, ...], config: CoreConfig, waiting: WaitingQueue) -> None:
    if len(waiting) + len(specs) > config.max_num_waiting:
        raise QueueFullError(
            f"{len(waiting)} sequences wait, limit {config.max_num_waiting}",
            field="request",
            value=len(waiting),
            limit=config.max_num_waiting,
        )
    limit = config.max_num_waiting_tokens
    if limit is None or not len(waiting):
        return
    num_tokens = sum(len(spec.prompt) for spec in specs)
    if waiting.num_prompt_tokens + num_tokens > limit:
        raise QueueFullError(
            f"{waiting.num_prompt_tokens} prompt tokens wait, {num_tokens} more are over the limit {limit}",
            field="request",
            value=waiting.num_prompt_tokens + num_tokens,
            limit=limit,
        )


def _check_spec(spec: SequenceSpec, first: SequenceSpec, live: Container[int]) -> None:
    if not spec.prompt:
        raise InvalidSequenceError("the prompt is empty", field="prompt", value=0, limit="at least 1 token")
    if spec.max_tokens < 1:
        raise InvalidSequenceError(
            f"max_tokens must be at least 1, is {spec.max_tokens}", field="max_tokens", value=spec.max_tokens, limit=1
        )
    if spec is not first:
        _check_follower(spec, first)
    if spec.sequence_id in live:
        raise DuplicateSequenceError(
            f"sequence {spec.sequence_id} is live", field="sequence_id", value=spec.sequence_id
        )


def _check_follower(spec: SequenceSpec, first: SequenceSpec) -> None:
    if spec.sampling.num_prompt_logprobs is not None:
        raise InvalidSequenceError("the first sequence of a group scores the prompt for all", field="prompt_logprobs")
    if (spec.prompt, spec.cache_salt, spec.priority) != (first.prompt, first.cache_salt, first.priority):
        raise InvalidSequenceError("the sequences of a group differ in prompt, salt or priority", field="prompt")


def _check_fits(specs: tuple[SequenceSpec, ...], block_size: int, num_blocks: int) -> None:
    spec = max(specs, key=lambda one: blocks_needed(one, block_size))
    needed = blocks_needed(spec, block_size)
    if needed > num_blocks:
        raise NeverFitsError(
            f"needs {needed} blocks, pool {num_blocks}: {len(spec.prompt)} prompt tokens"
            + ("" if spec.open_ended else f" and {spec.max_tokens} more")
            + f", {block_size} per block",
            field="prompt" if spec.open_ended else "max_tokens",
            value=len(spec.prompt) if spec.open_ended else spec.max_tokens,
            limit=num_blocks,
        )
    together = blocks_for(len(spec.prompt), block_size) + len(specs) - 1
    if together > num_blocks:
        raise NeverFitsError(
            f"needs {together} blocks, pool {num_blocks}: {len(spec.prompt)} prompt tokens and a block for each of "
            f"{len(specs) - 1} more sequences",
            field="n",
            value=len(specs),
            limit=num_blocks,
        )
