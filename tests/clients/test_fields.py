"""The clients' values have the fields of the messages they stand for: none is lost when a proto grows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from clients import request, results, stats
from octavo.serving.v1 import admin_pb2, generation_pb2, sampling_pb2, tokenizer_pb2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (request.SamplingParams, sampling_pb2.SamplingParams),
        (results.Delta, generation_pb2.SequenceDelta),
        (results.TokenLogprob, generation_pb2.TokenLogprob),
        (results.TopLogprob, generation_pb2.TopLogprob),
        (results.ToolCallDelta, generation_pb2.ToolCallDelta),
        (results.ToolCall, generation_pb2.ToolCall),
        (results.Tokens, tokenizer_pb2.TokenizeResponse),
        (results.Usage, generation_pb2.Usage),
        (results.ModelInfo, generation_pb2.GetModelInfoResponse),
        (stats.QueueStats, admin_pb2.QueueStats),
        (stats.BlockStats, admin_pb2.BlockStats),
        (stats.HostBlockStats, admin_pb2.HostBlockStats),
        (stats.CounterStats, admin_pb2.CounterStats),
        (stats.WorkerStats, admin_pb2.WorkerStats),
        (stats.Stats, admin_pb2.GetStatsResponse),
    ],
)
def test_a_value_has_the_fields_of_its_message(value: type[Any], message: Any) -> None:
    assert {field.name for field in fields(value)} == set(message.DESCRIPTOR.fields_by_name)


def test_a_message_has_the_fields_of_a_turn() -> None:
    assert set(get_type_hints(request.Message)) == set(generation_pb2.ChatMessage.DESCRIPTOR.fields_by_name)
    chat = set(generation_pb2.ChatPrompt.DESCRIPTOR.fields_by_name)
    assert {"messages", *get_type_hints(request.ChatKeywords)} == chat


def test_the_sampling_keywords_are_the_fields_of_the_parameters() -> None:
    assert get_type_hints(request.SamplingKeywords) == get_type_hints(request.SamplingParams)
