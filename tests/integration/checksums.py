"""Checks an answer of the uniform oracle against its closed form, number by number."""

from __future__ import annotations

from collections.abc import Sequence

from clients import Choice, Completion
from tests.oracle.uniform import UniformOracle

TOLERANCE = 2e-3


def assert_closed_form(oracle: UniformOracle, prompt: Sequence[int], completion: Completion | Choice) -> None:
    """Every logprob, of the sampled token and of the most likely, is what the oracle says of an intact KV cache."""
    token_ids = list(prompt)
    assert len(completion.logprobs) == len(completion.token_ids)
    for index, (token_id, entry) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        expected = oracle.expected_logprobs(token_ids)
        assert entry.token_id == token_id
        seen = {entry.token_id: entry.logprob} | {other.token_id: other.logprob for other in entry.top}
        for other, logprob in seen.items():
            error = abs(logprob - expected[other])
            assert error <= TOLERANCE, f"output {index}, token {other}: logprob is off by {error:.4f}"
        token_ids.append(token_id)
