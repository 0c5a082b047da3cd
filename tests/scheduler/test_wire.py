"""Plans and results as messages."""

from __future__ import annotations

from dataclasses import fields

import pytest

from octavo.worker.v1alpha1 import worker_pb2 as pb
from scheduler import wire
from scheduler.core.plan import Admission, BlockCopies, StepPlan
from scheduler.core.result import RowFlag, StepResult
from scheduler.core.sequence import Sampling
from scheduler.wire import PROTOCOL_VERSION


def test_a_plan_keeps_every_column() -> None:
    admission = Admission(
        sequence_id=7,
        row=3,
        num_prompt_tokens=2,
        token_ids=(5, 6, 9),
        blocks=(11, 4),
        num_computed_tokens=0,
        sampling=Sampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, num_logprobs=0),
        adapter_id=0,
        seed=2**64 - 1,
        output_index=1,
    )
    plan = StepPlan(
        step_id=12,
        released_rows=(3,),
        swap_out=BlockCopies(sources=(4, 2), destinations=(0, 9)),
        swap_in=BlockCopies(sources=(7,), destinations=(4,)),
        copy_on_write=BlockCopies(sources=(5, 5), destinations=(6, 8)),
        admissions=(admission,),
        edit_rows=(1,),
        edit_indices=(8,),
        edit_blocks=(40,),
        rows=(1, 3),
        num_tokens=(1, 3),
        max_samples=(1, 1),
    )
    sent_twice = pb.ExecuteRequest.FromString(wire.plans_message([plan, plan]).SerializeToString()).plans
    message, again = sent_twice.plans
    assert again == message
    assert (message.step_id, list(message.released_rows)) == (12, [3])
    phases = (message.swap_out, message.swap_in, message.copy_on_write)
    assert [(list(phase.sources), list(phase.destinations)) for phase in phases] == [
        ([4, 2], [0, 9]),
        ([7], [4]),
        ([5, 5], [6, 8]),
    ]
    sent = message.admissions[0]
    assert (sent.sequence_id, sent.row, list(sent.token_ids), sent.seed) == (7, 3, [5, 6, 9], 2**64 - 1)
    assert (list(sent.block_tables[0].blocks), sent.output_index, sent.num_prompt_tokens) == ([11, 4], 1, 2)
    assert (sent.sampling.temperature, sent.sampling.top_k, sent.sampling.top_p, sent.sampling.min_p) == (
        0.5,
        3,
        0.9,
        0.1,
    )
    assert sent.sampling.HasField("num_logprobs") and sent.sampling.num_logprobs == 0
    edits, scheduled = message.table_edits, message.scheduled
    assert (list(edits.rows), list(edits.indices), list(edits.blocks)) == ([1], [8], [40])
    assert (list(scheduled.rows), list(scheduled.num_tokens), list(scheduled.max_samples)) == ([1, 3], [1, 3], [1, 1])


def test_an_admission_keeps_every_sampling_parameter() -> None:
    sampling = Sampling(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        num_logprobs=4,
        min_tokens=5,
        masked_token_ids=(2, 7),
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        repetition_penalty=1.25,
        logit_bias=((3, -100.0), (8, 1.5)),
        allowed_token_ids=(3, 8),
        bad_words=((4,), (5, 6)),
        grammar="a grammar",
        eos_token_ids=(2,),
        num_prompt_logprobs=6,
    )
    assert all(getattr(sampling, field.name) != field.default for field in fields(Sampling))
    admission = Admission(1, 0, 1, (1,), (0,), 0, sampling, 0, 0, 0, num_scored_tokens=9)
    plan = StepPlan(step_id=1, admissions=(admission,), rows=(0,), num_tokens=(1,), max_samples=(1,))
    message = wire.plans_message([plan]).plans.plans[0].admissions[0]
    assert message.num_scored_tokens == 9
    assert message.sampling == pb.Sampling(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        num_logprobs=4,
        min_tokens=5,
        masked_token_ids=[2, 7],
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        repetition_penalty=1.25,
        bias_token_ids=[3, 8],
        biases=[-100.0, 1.5],
        allowed_token_ids=[3, 8],
        bad_words=[pb.TokenSequence(token_ids=[4]), pb.TokenSequence(token_ids=[5, 6])],
        grammar="a grammar",
        eos_token_ids=[2],
        num_prompt_logprobs=6,
    )
    assert len(message.sampling.ListFields()) == len(pb.Sampling.DESCRIPTOR.fields)


def test_no_logprobs_is_not_zero_logprobs() -> None:
    admission = Admission(
        sequence_id=1,
        row=0,
        num_prompt_tokens=1,
        token_ids=(1,),
        blocks=(0,),
        num_computed_tokens=0,
        sampling=Sampling(),
        adapter_id=0,
        seed=0,
        output_index=0,
    )
    plan = StepPlan(step_id=1, admissions=(admission,), rows=(0,), num_tokens=(1,), max_samples=(1,))
    assert not wire.plans_message([plan]).plans.plans[0].admissions[0].sampling.HasField("num_logprobs")


def test_a_decode_step_of_256_rows_is_small() -> None:
    plan = StepPlan(step_id=9, rows=tuple(range(256)), num_tokens=(1,) * 256, max_samples=(1,) * 256)
    message = wire.plans_message([plan])
    assert message.ByteSize() < 1500
    absent = ("swap_out", "swap_in", "copy_on_write", "table_edits")
    assert not any(message.plans.plans[0].HasField(part) for part in absent)


def test_a_session_asks_for_the_blocks_that_its_plans_use() -> None:
    capacity = wire.read_capacity(
        pb.GetCapacityResponse(
            protocol_version=PROTOCOL_VERSION,
            kv_groups=[pb.KvGroup(block_size=16, bytes_per_block=4096)],
            world_size=1,
            num_device_blocks=100,
            num_host_blocks=25,
            config_digest=b"digest",
        )
    )
    assert (capacity.num_blocks, capacity.num_host_blocks, capacity.bytes_per_block) == (100, 25, 4096)
    limits = wire.SessionLimits(
        num_blocks=90, num_host_blocks=20, num_rows=8, max_num_batched_tokens=64, max_model_len=128
    )
    assert wire.open_message(capacity, limits, 7).open == pb.Open(
        protocol_version=PROTOCOL_VERSION,
        config_digest=b"digest",
        num_device_blocks=90,
        num_host_blocks=20,
        group_epoch=7,
        num_rows=8,
        max_num_batched_tokens=64,
        max_model_len=128,
    )


def test_a_result_is_read_row_by_row() -> None:
    message = pb.StepResult(
        step_id=4,
        num_sampled=[1, 0, 1],
        tokens=[8, 9],
        logprobs=[-0.5, 0.0],
        num_top=[2, 0],
        top_tokens=[8, 3],
        top_logprobs=[-0.5, -1.5],
        flags=[pb.ROW_FLAG_UNSPECIFIED, pb.ROW_FLAG_NON_FINITE, pb.ROW_FLAG_UNSPECIFIED],
        execute_ns=5,
        copy_ns=3,
    )
    result = wire.read_result(message, epoch=2)
    assert (result.epoch, result.step_id, result.num_sampled, result.tokens) == (2, 4, (1, 0, 1), (8, 9))
    assert (result.top_tokens, result.top_logprobs) == (((8, 3), ()), ((-0.5, -1.5), ()))
    assert (result.execute_ns, result.copy_ns) == (5, 3)
    assert result.flags == (RowFlag.OK, RowFlag.NON_FINITE, RowFlag.OK)
    assert result.num_scored == result.scored_logprobs == ()


def test_scores_are_read_row_by_row() -> None:
    message = pb.StepResult(
        num_scored=[2, 0, 1],
        scored_logprobs=[-0.5, -1.5, -2.5],
        scored_num_top=[2, 0, 1],
        scored_top_tokens=[8, 3, 9],
        scored_top_logprobs=[-0.5, -1.5, -0.25],
    )
    result = wire.read_result(message, epoch=2)
    assert result == StepResult(
        epoch=2,
        step_id=0,
        num_sampled=(),
        tokens=(),
        num_scored=(2, 0, 1),
        scored_logprobs=(-0.5, -1.5, -2.5),
        scored_top_tokens=((8, 3), (), (9,)),
        scored_top_logprobs=((-0.5, -1.5), (), (-0.25,)),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol_version": 99}, f"protocol version 99, not {PROTOCOL_VERSION}"),
        ({"kv_groups": [pb.KvGroup(), pb.KvGroup()]}, "2 KV groups; 1 is supported"),
        ({"world_size": 4}, "4 ranks; 1 is supported"),
    ],
)
def test_a_worker_that_cannot_be_driven_is_refused(change: dict, message: str) -> None:
    fields = {"protocol_version": PROTOCOL_VERSION, "kv_groups": [pb.KvGroup()], "world_size": 1} | change
    with pytest.raises(wire.CapacityError, match=message):
        wire.read_capacity(pb.GetCapacityResponse(**fields))
