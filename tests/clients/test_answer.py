"""What an answer says of its speed."""

from __future__ import annotations

import pytest

from clients.commands.answer import Answer
from clients.results import Delta, Usage


def test_messages_that_are_read_at_once_do_not_make_the_server_faster() -> None:
    answer = Answer()
    for index in range(8):
        answer.add(Delta(index=0, text="x", token_ids=(index,)))
    answer.usage = Usage(
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=8,
        queue_seconds=0.0,
        prefill_seconds=0.1,
        decode_seconds=0.35,
    )
    assert answer.tokens_per_second == pytest.approx(20.0)
    assert answer.summary.endswith(", 20.0 tokens/s")
