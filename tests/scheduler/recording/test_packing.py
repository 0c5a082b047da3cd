"""What is packed is read back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.config import CoreConfig
from scheduler.core.result import RowFlag, StepResult
from scheduler.core.sequence import Sampling, SequenceSpec
from scheduler.recording.errors import RecordingError
from scheduler.recording.packing import Packer, Unpacker
from scheduler.recording.values import (
    changed_fields,
    config_from_json,
    pack_result,
    pack_specs,
    pack_time,
    unpack_result,
    unpack_specs,
    unpack_time,
)

_WIDTHS = st.sampled_from((8, 9, 16, 24, 32, 33, 64))
_COLUMNS = _WIDTHS.flatmap(lambda bits: st.lists(st.integers(0, 2**bits - 1), max_size=40)).map(tuple)


@settings(derandomize=True, database=None, deadline=None)
@given(columns=st.lists(_COLUMNS, max_size=4), number=st.integers(-(2**70), 2**70), text=st.text(max_size=20))
def test_scalars_and_columns(columns: list[tuple[int, ...]], number: int, text: str) -> None:
    packer = Packer()
    for column in columns:
        packer.column(column)
    packer.signed(number)
    packer.text(text)
    unpacker = Unpacker(packer.take())
    assert [unpacker.column() for _ in columns] == columns
    assert (unpacker.signed(), unpacker.text()) == (number, text)
    assert unpacker.at_end and not packer.buffer


def test_a_column_takes_the_bytes_that_its_largest_value_needs() -> None:
    for top, width in ((255, 1), (256, 2), (65_536, 3), (2**24, 4), (2**40, 6)):
        packer = Packer()
        packer.column((*range(99), top))
        assert len(packer.buffer) == 2 + 100 * width
    packer = Packer()
    packer.column((1,) * 1000)
    assert len(packer.buffer) == 4


def test_content_that_ends_too_early_is_an_error() -> None:
    packer = Packer()
    packer.column((1, 2, 300))
    content = packer.take()
    for length in range(len(content)):
        with pytest.raises(RecordingError):
            Unpacker(content[:length]).column()


def test_sequences_with_every_field_set() -> None:
    spec = SequenceSpec(
        sequence_id=7,
        prompt=(5, 70_000, 3),
        max_tokens=9,
        stop_token_ids=frozenset({2, 1, 99}),
        sampling=Sampling(
            temperature=0.7,
            top_k=3,
            top_p=0.9,
            min_p=0.05,
            num_logprobs=2,
            min_tokens=1,
            masked_token_ids=(1, 2, 99),
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            repetition_penalty=1.5,
            logit_bias=((4, -1.5), (5, 100.0)),
            allowed_token_ids=(4, 5),
            bad_words=((4,), (5, 4)),
            grammar='start: "a" | "é"',
            eos_token_ids=(99,),
            num_prompt_logprobs=0,
        ),
        seed=2**63,
        tenant="ten\nant",
        priority=-3,
        cache_salt="pepper",
        deadline_ns=12,
    )
    packer = Packer()
    pack_specs(packer, (spec,))
    alone = packer.take()
    assert unpack_specs(Unpacker(alone)) == (spec,)
    group = (spec, replace(spec, seed=3), replace(spec, prompt=(1,)))
    pack_specs(packer, group)
    assert unpack_specs(Unpacker(packer.take())) == group


def test_a_result_keeps_all_that_the_core_looks_at() -> None:
    result = StepResult(
        epoch=3,
        step_id=400,
        num_sampled=(1, 0, 1),
        tokens=(100_000, 4),
        logprobs=(-0.5, -2.0),
        top_tokens=((1, 2), ()),
        top_logprobs=((-0.5, -1.0), ()),
        flags=(RowFlag.OK, RowFlag.NON_FINITE, RowFlag.OK),
        execute_ns=1_234_567,
        num_scored=(0, 2, 1),
        scored_logprobs=(-1.0, -2.0, -3.0),
    )
    packer = Packer()
    pack_result(packer, result)
    read = unpack_result(Unpacker(packer.take()))
    for name in ("epoch", "step_id", "num_sampled", "tokens", "flags", "execute_ns", "num_scored"):
        assert getattr(read, name) == getattr(result, name)
    for name in ("logprobs", "top_tokens", "top_logprobs", "scored_logprobs"):
        assert len(getattr(read, name)) == len(getattr(result, name))


def test_times_around_that_of_the_record() -> None:
    for time_ns in (0, 10**18 - 5, 10**18, 10**18 + 77):
        packer = Packer()
        packer.now_ns = 10**18
        pack_time(packer, time_ns)
        unpacker = Unpacker(packer.take())
        unpacker.now_ns = 10**18
        assert unpack_time(unpacker) == time_ns


def test_limits_that_this_version_does_not_know_are_refused() -> None:
    config = CoreConfig(num_blocks=9, watermark=1)
    values = changed_fields(config)
    assert config_from_json(values) == config
    with pytest.raises(RecordingError, match="max_flights"):
        config_from_json({**values, "max_flights": 3})
