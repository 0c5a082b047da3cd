"""Limits that contradict themselves are refused, naming the field, its value and the limit."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.config import CoreConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be at least 1, is 0"),
        ({"block_size": 0}, "block_size must be at least 1, is 0"),
        ({"max_num_seqs": -1}, "max_num_seqs must be at least 1, is -1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1, is 0"),
        ({"max_num_waiting": 0}, "max_num_waiting must be at least 1, is 0"),
        ({"max_num_waiting_tokens": 0}, "max_num_waiting_tokens must be at least 1, is 0"),
        ({"max_plans_in_flight": 0}, "max_plans_in_flight must be 1, 2 or 4, is 0"),
        ({"max_plans_in_flight": 3}, "max_plans_in_flight must be 1, 2 or 4, is 3"),
        (
            {"max_num_seqs": 8, "max_num_batched_tokens": 7},
            "max_num_batched_tokens (7) must be at least max_num_seqs (8): every running sequence decodes one token "
            "per step",
        ),
        ({"num_host_blocks": -1}, "num_host_blocks must be at least 0, is -1"),
        ({"bytes_per_block": -1}, "bytes_per_block must be at least 0, is -1"),
        ({"max_overtakes": -1}, "max_overtakes must be at least 0, is -1"),
        ({"policy": "lifo"}, "policy must be priority or fcfs, is 'lifo'"),
        ({"preemption_mode": "drop"}, "preemption_mode must be auto, recompute or swap, is 'drop'"),
        ({"watermark": -1}, "watermark must be in [0, num_blocks = 4), is -1"),
        ({"watermark": 4}, "watermark must be in [0, num_blocks = 4), is 4"),
    ],
)
def test_a_bad_limit_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        CoreConfig(**{"num_blocks": 4, **fields})
    assert str(error.value) == message


def test_the_tightest_limits_are_accepted() -> None:
    CoreConfig(
        num_blocks=1, block_size=1, max_num_seqs=1, max_num_batched_tokens=1, max_plans_in_flight=1, max_num_waiting=1
    )
