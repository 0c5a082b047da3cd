"""Every way in which a message can break the contract by itself, and that nothing is lost in translation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from octavo.worker.v1alpha1 import worker_pb2 as pb
from tests.worker.plans import LIMITS, admission, read, step
from worker import wire
from worker.step import PROTOCOL_VERSION, Open, PlanError, PromptScores, RowFlag, Sampling, StepResult

WHOLE_PLAN = pb.StepPlan(
    step_id=2**40,
    released_rows=[3, 1],
    swap_out=pb.BlockCopies(groups=[0, 0], sources=[31, 4], destinations=[0, 7]),
    swap_in=pb.BlockCopies(sources=[7, 7], destinations=[4, 31]),
    copy_on_write=pb.BlockCopies(groups=[0], sources=[4], destinations=[5]),
    admissions=[
        pb.Admission(
            sequence_id=2**50,
            row=1,
            num_prompt_tokens=2,
            token_ids=[99, 0, 7],
            block_tables=[pb.BlockTable(blocks=[31, 2])],
            num_computed_tokens=2,
            sampling=pb.Sampling(temperature=0.7, top_k=1000, top_p=0.9, min_p=0.1, num_logprobs=0),
            seed=2**64 - 1,
            output_index=2**32 - 1,
        )
    ],
    table_edits=pb.TableEdits(rows=[2, 1], groups=[0, 0], indices=[0, 3], blocks=[8, 9]),
    scheduled=pb.Scheduled(rows=[1, 2], num_tokens=[1, 16], max_samples=[1, 0]),
)


def test_a_plan_is_read_in_full() -> None:
    plan = read(WHOLE_PLAN)
    assert plan.step_id == 2**40
    assert plan.released_rows.tolist() == [3, 1]
    # Host blocks and device blocks of the same number are different blocks, and what one phase frees the next may use.
    assert (plan.swap_out.sources.tolist(), plan.swap_out.destinations.tolist()) == ([31, 4], [0, 7])
    assert (plan.swap_in.sources.tolist(), plan.swap_in.destinations.tolist()) == ([7, 7], [4, 31])
    assert (plan.copy_on_write.sources.tolist(), plan.copy_on_write.destinations.tolist()) == ([4], [5])
    assert (plan.edit_rows.tolist(), plan.edit_indices.tolist(), plan.edit_blocks.tolist()) == ([2, 1], [0, 3], [8, 9])
    assert (plan.rows.tolist(), plan.num_tokens.tolist(), plan.max_samples.tolist()) == ([1, 2], [1, 16], [1, 0])
    (sequence,) = plan.admissions
    assert (sequence.sequence_id, sequence.row, sequence.num_prompt_tokens) == (2**50, 1, 2)
    assert (sequence.token_ids.tolist(), sequence.blocks.tolist()) == ([99, 0, 7], [31, 2])
    assert (sequence.num_computed_tokens, sequence.seed, sequence.output_index) == (2, 2**64 - 1, 2**32 - 1)
    # top_k above the vocabulary is the same as off, and fits its column.
    assert sequence.sampling == Sampling(temperature=0.7, top_k=100, top_p=0.9, min_p=0.1, num_logprobs=0)
    assert all(column.dtype == np.int32 for column in (plan.rows, plan.released_rows, sequence.token_ids))


def test_logprobs_not_asked_for_and_asked_for_with_none_beside_differ() -> None:
    plan = read(step(1, [0], admissions=[admission(0, [1], [0])]))
    assert plan.admissions[0].sampling.num_logprobs is None


def test_an_open_is_read_in_full() -> None:
    fields = {
        "protocol_version": PROTOCOL_VERSION,
        "config_digest": b"\x01\x02",
        "num_device_blocks": 3,
        "num_host_blocks": 4,
        "group_epoch": 2**60,
        "num_rows": 5,
        "max_num_batched_tokens": 6,
        "max_model_len": 7,
    }
    assert dataclasses.asdict(wire.read_open(pb.Open(**fields))) == fields
    assert {field.name for field in dataclasses.fields(Open)} == set(fields)


def test_a_result_is_written_in_full() -> None:
    result = StepResult(
        step_id=9,
        num_sampled=np.array([1, 0], np.int32),
        tokens=np.array([77], np.int32),
        logprobs=np.array([-0.5], np.float32),
        num_top=np.array([2], np.int32),
        top_tokens=np.array([77, 3], np.int32),
        top_logprobs=np.array([-0.5, -2.0], np.float32),
        flags=np.array([RowFlag.OK, RowFlag.NON_FINITE], np.int32),
        execute_ns=2**40,
        copy_ns=2**39,
        scores=PromptScores(
            num_scored=np.array([0, 2], np.int32),
            logprobs=np.array([-1.5, -2.5], np.float32),
            num_top=np.array([1, 1], np.int32),
            top_tokens=np.array([5, 6], np.int32),
            top_logprobs=np.array([-0.25, -0.75], np.float32),
        ),
    )
    (written,) = wire.write_results([result]).results.results
    assert written == pb.StepResult(
        step_id=9,
        num_sampled=[1, 0],
        tokens=[77],
        logprobs=[-0.5],
        num_top=[2],
        top_tokens=[77, 3],
        top_logprobs=[-0.5, -2.0],
        flags=[pb.ROW_FLAG_UNSPECIFIED, pb.ROW_FLAG_NON_FINITE],
        execute_ns=2**40,
        copy_ns=2**39,
        num_scored=[0, 2],
        scored_logprobs=[-1.5, -2.5],
        scored_num_top=[1, 1],
        scored_top_tokens=[5, 6],
        scored_top_logprobs=[-0.25, -0.75],
    )


def test_rules_are_read_in_full_and_there_are_none_where_all_is_neutral() -> None:
    given = {
        "min_tokens": 3,
        "masked_token_ids": [9, 2],
        "presence_penalty": 0.5,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.5,
        "bias_token_ids": [4, 3],
        "biases": [1.5, -100.0],
        "allowed_token_ids": [3, 4],
        "bad_words": [pb.TokenSequence(token_ids=[7, 8])],
        "grammar": "a grammar",
        "eos_token_ids": [2],
    }
    (sequence,) = read(with_sequence(sampling=pb.Sampling(top_p=1, **given))).admissions
    rules = sequence.sampling.rules
    assert rules is not None
    read_values = dataclasses.asdict(rules)
    for name in ("masked_token_ids", "bias_token_ids", "biases", "allowed_token_ids"):
        read_values[name] = read_values[name].tolist()
    assert read_values == given | {"bad_words": ((7, 8),), "eos_token_ids": (2,)}
    neutral = pb.Sampling(top_p=1, repetition_penalty=1.0, min_tokens=5, num_prompt_logprobs=3)
    (sequence,) = read(with_sequence(sampling=neutral)).admissions
    assert (sequence.sampling.rules, sequence.sampling.num_prompt_logprobs) == (None, 3)


def with_sequence(**changes: object) -> pb.StepPlan:
    """A plan that admits a sequence of three tokens and one block, with fields of the admission replaced."""
    message = admission(0, [1, 2, 3], [0])
    for name, value in changes.items():
        message.ClearField(name)
        if isinstance(value, list):
            getattr(message, name).extend(value)
        elif isinstance(value, pb.Sampling):
            message.sampling.CopyFrom(value)
        else:
            setattr(message, name, value)
    return step(1, [0], [3], admissions=[message])


BROKEN = {
    "released row out of range": (step(1, [0], released_rows=[4]), "released_rows", "4", "below 4"),
    "released twice": (step(1, [0], released_rows=[2, 2]), "released_rows", "2", "once"),
    "copied from and to": (
        step(1, [0], copy_on_write=pb.BlockCopies(sources=[1, 2], destinations=[3, 1])),
        "copy_on_write.destinations",
        "1",
        "source",
    ),
    "edits of unequal length": (
        step(1, [0], table_edits=pb.TableEdits(rows=[1], indices=[0], blocks=[])),
        "table_edits.blocks",
        "0 entries",
        "has 1",
    ),
    "edits without indices": (
        step(1, [0], table_edits=pb.TableEdits(rows=[1], blocks=[1])),
        "table_edits.indices",
        "0 entries",
        "has 1",
    ),
    "edit of a row out of range": (
        step(1, [0], table_edits=pb.TableEdits(rows=[4], indices=[0], blocks=[0])),
        "table_edits.rows",
        "4",
        "below 4",
    ),
    "edit of an index out of range": (
        step(1, [0], table_edits=pb.TableEdits(rows=[0], indices=[4], blocks=[0])),
        "table_edits.indices",
        "4",
        "below 4",
    ),
    "edit to a block out of range": (
        step(1, [0], table_edits=pb.TableEdits(rows=[0], indices=[0], blocks=[32])),
        "table_edits.blocks",
        "32",
        "below 32",
    ),
    "edit of another group": (
        step(1, [0], table_edits=pb.TableEdits(rows=[0], groups=[2], indices=[0], blocks=[0])),
        "table_edits.groups",
        "2",
        "one KV group",
    ),
    "groups of unequal length": (
        step(1, [0], table_edits=pb.TableEdits(rows=[0], groups=[0, 0], indices=[0], blocks=[0])),
        "table_edits.groups",
        "2 entries",
        "have 1",
    ),
    "admitted row out of range": (with_sequence(row=4), "admissions[sequence 0].row", "4", "below 4"),
    "two sequences in a row": (
        step(1, [0], admissions=[admission(1, [1], [0]), admission(1, [1], [1])]),
        "admissions.row",
        "1",
        "once",
    ),
    "no tokens": (with_sequence(token_ids=[]), "admissions[sequence 0].token_ids", "0 tokens", "16"),
    "too many tokens": (
        with_sequence(token_ids=list(range(17))),
        "admissions[sequence 0].token_ids",
        "17 tokens",
        "max_model_len = 16",
    ),
    "token outside the vocabulary": (
        with_sequence(token_ids=[1, 100]),
        "admissions[sequence 0].token_ids",
        "100",
        "below 100",
    ),
    "no prompt": (with_sequence(num_prompt_tokens=0), "admissions[sequence 0].num_prompt_tokens", "0", "1 to 3"),
    "prompt longer than the tokens": (
        with_sequence(num_prompt_tokens=4),
        "admissions[sequence 0].num_prompt_tokens",
        "4",
        "1 to 3",
    ),
    "no block table": (
        with_sequence(block_tables=[]),
        "admissions[sequence 0].block_tables",
        "0 tables",
        "one KV group",
    ),
    "two block tables": (
        with_sequence(block_tables=[pb.BlockTable(), pb.BlockTable()]),
        "admissions[sequence 0].block_tables",
        "2 tables",
        "one KV group",
    ),
    "admitted block out of range": (
        with_sequence(block_tables=[pb.BlockTable(blocks=[1, 32])]),
        "admissions[sequence 0].block_tables",
        "32",
        "below 32",
    ),
    "too many blocks": (
        with_sequence(block_tables=[pb.BlockTable(blocks=[1, 2, 3, 4, 5])]),
        "admissions[sequence 0].block_tables",
        "5 blocks",
        "at most 4",
    ),
    "all tokens computed": (
        with_sequence(num_computed_tokens=3),
        "admissions[sequence 0].num_computed_tokens",
        "3",
        "at most 2",
    ),
    "computed tokens without a block": (
        with_sequence(block_tables=[pb.BlockTable()], num_computed_tokens=1),
        "admissions[sequence 0].num_computed_tokens",
        "1",
        "at most 0",
    ),
    "an adapter": (with_sequence(adapter_id=7), "admissions[sequence 0].adapter_id", "7", "only 0"),
    "negative temperature": (
        with_sequence(sampling=pb.Sampling(temperature=-0.5, top_p=1)),
        "admissions[sequence 0].sampling.temperature",
        "-0.5",
        "at least 0",
    ),
    "infinite temperature": (
        with_sequence(sampling=pb.Sampling(temperature=float("inf"), top_p=1)),
        "admissions[sequence 0].sampling.temperature",
        "inf",
        "finite",
    ),
    "top_p 0": (with_sequence(sampling=pb.Sampling(top_p=0)), "admissions[sequence 0].sampling.top_p", "0.0", "(0, 1]"),
    "min_p above 1": (
        with_sequence(sampling=pb.Sampling(top_p=1, min_p=1.5)),
        "admissions[sequence 0].sampling.min_p",
        "1.5",
        "[0, 1]",
    ),
    "more logprobs than tokens": (
        with_sequence(sampling=pb.Sampling(top_p=1, num_logprobs=101)),
        "admissions[sequence 0].sampling.num_logprobs",
        "101",
        "below 101",
    ),
    "more prompt logprobs than tokens": (
        with_sequence(sampling=pb.Sampling(top_p=1, num_prompt_logprobs=101)),
        "admissions[sequence 0].sampling.num_prompt_logprobs",
        "101",
        "below 101",
    ),
    "prompt logprobs of tokens that were computed before": (
        with_sequence(sampling=pb.Sampling(top_p=1, num_prompt_logprobs=0), num_computed_tokens=2, num_scored_tokens=1),
        "admissions[sequence 0].num_computed_tokens",
        "2",
        "num_scored_tokens is 1",
    ),
    "a penalty that is no number": (
        with_sequence(sampling=pb.Sampling(top_p=1, presence_penalty=float("nan"))),
        "admissions[sequence 0].sampling.presence_penalty",
        "nan",
        "finite",
    ),
    "a negative repetition penalty": (
        with_sequence(sampling=pb.Sampling(top_p=1, repetition_penalty=-1)),
        "admissions[sequence 0].sampling.repetition_penalty",
        "-1.0",
        "at least 0",
    ),
    "an id of another width": (
        with_sequence(sampling=pb.Sampling(top_p=1, allowed_token_ids=[1, 100])),
        "admissions[sequence 0].sampling.allowed_token_ids",
        "100",
        "below 100",
    ),
    "an id that is biased twice": (
        with_sequence(sampling=pb.Sampling(top_p=1, bias_token_ids=[1, 1], biases=[1, 2])),
        "admissions[sequence 0].sampling.bias_token_ids",
        "1",
        "once",
    ),
    "a bias too few": (
        with_sequence(sampling=pb.Sampling(top_p=1, bias_token_ids=[1, 2], biases=[1])),
        "admissions[sequence 0].sampling.biases",
        "1 entries",
        "has 2",
    ),
    "an infinite bias": (
        with_sequence(sampling=pb.Sampling(top_p=1, bias_token_ids=[1], biases=[float("inf")])),
        "admissions[sequence 0].sampling.biases",
        "a number that is not finite",
        "finite",
    ),
    "an empty bad word": (
        with_sequence(sampling=pb.Sampling(top_p=1, bad_words=[pb.TokenSequence()])),
        "admissions[sequence 0].sampling.bad_words",
        "an empty sequence",
        "at least one",
    ),
    "a grammar that nothing ends": (
        with_sequence(sampling=pb.Sampling(top_p=1, grammar="a grammar")),
        "admissions[sequence 0].sampling.eos_token_ids",
        "no id",
        "needs one",
    ),
    "nothing scheduled": (pb.StepPlan(step_id=1), "scheduled.rows", "no row", "at least one"),
    "scheduled row out of range": (step(1, [0, 4]), "scheduled.rows", "4", "below 4"),
    "scheduled twice": (step(1, [1, 2, 1]), "scheduled.rows", "1", "once"),
    "num_tokens of another length": (step(1, [0, 1], [1]), "scheduled.num_tokens", "1 entries", "has 2"),
    "max_samples of another length": (step(1, [0, 1], [1, 1], [1]), "scheduled.max_samples", "1 entries", "has 2"),
    "no token": (step(1, [0, 1], [1, 0]), "scheduled.num_tokens", "0", "at least 1"),
    "more tokens than a sequence has": (step(1, [0], [2**31]), "scheduled.num_tokens", "2147483648", "below 17"),
    "over the token budget": (step(1, [0, 1], [16, 5]), "scheduled.num_tokens", "21 in sum", "20"),
    "two samples": (step(1, [0], [1], [2]), "scheduled.max_samples", "2", "0 or 1"),
    "forced tokens": (
        pb.StepPlan(step_id=1, scheduled=pb.Scheduled(rows=[0], num_tokens=[1], max_samples=[1], forced_tokens=[5])),
        "scheduled.forced_tokens",
        "1 entries",
        "not accepted",
    ),
    "draft tokens": (
        pb.StepPlan(step_id=1, scheduled=pb.Scheduled(rows=[0], num_tokens=[1], max_samples=[1], num_drafts=[1])),
        "scheduled.num_drafts",
        "1 entries",
        "not accepted",
    ),
}


@pytest.mark.parametrize(("message", "column", "value", "limit"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plan_is_refused_by_name(message: pb.StepPlan, column: str, value: str, limit: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(message)
    error = caught.value
    assert (error.column, str(error.value)) == (column, value)
    assert limit in error.limit
    assert str(error).startswith(f"{column}: {error.value} ")


SIZES = {"swap_out": (32, 8), "swap_in": (8, 32), "copy_on_write": (32, 32)}
"""Per phase the blocks that sources and destinations are among."""


@pytest.mark.parametrize("phase", SIZES)
def test_a_broken_phase_of_copies_is_refused_by_name(phase: str) -> None:
    sources, destinations = SIZES[phase]
    broken = [
        (pb.BlockCopies(sources=[1, 2], destinations=[3]), "destinations", "1 entries", "has 2"),
        (pb.BlockCopies(sources=[], destinations=[3]), "destinations", "1 entries", "has 0"),
        (pb.BlockCopies(sources=[1, sources], destinations=[3, 4]), "sources", sources, f"below {sources}"),
        (
            pb.BlockCopies(sources=[1], destinations=[destinations]),
            "destinations",
            destinations,
            f"below {destinations}",
        ),
        (pb.BlockCopies(sources=[1], destinations=[2**32 - 1]), "destinations", 2**32 - 1, f"below {destinations}"),
        (pb.BlockCopies(sources=[1, 2], destinations=[3, 3]), "destinations", 3, "once"),
        (pb.BlockCopies(groups=[1], sources=[1], destinations=[3]), "groups", 1, "one KV group"),
        (pb.BlockCopies(groups=[0, 0], sources=[1], destinations=[3]), "groups", "2 entries", "have 1"),
        (pb.BlockCopies(groups=[0]), "groups", "1 entries", "have 0"),
    ]
    for copies, column, value, limit in broken:
        with pytest.raises(PlanError) as caught:
            read(step(1, [0], **{phase: copies}))
        assert (caught.value.column, caught.value.value) == (f"{phase}.{column}", value)
        assert limit in caught.value.limit
    for copies in (
        pb.BlockCopies(sources=[1, sources - 1], destinations=[2, 0]),
        pb.BlockCopies(sources=[1, 2], destinations=[destinations - 1, 0]),
    ):
        read(step(1, [0], **{phase: copies}))


def test_without_host_blocks_nothing_can_be_swapped() -> None:
    limits = dataclasses.replace(LIMITS, num_host_blocks=0)
    copies = pb.BlockCopies(sources=[0], destinations=[0])
    for phase, column in (("swap_out", "destinations"), ("swap_in", "sources")):
        with pytest.raises(
            PlanError, match=rf"{phase}\.{column}: 0 is not allowed, it must be below 0 \(host blocks\)"
        ):
            read(step(1, [0], **{phase: copies}), limits)


def test_the_limits_themselves_are_allowed() -> None:
    full = admission(3, range(84, 100), [31, 30, 29, 28], num_computed_tokens=15, num_logprobs=100, temperature=2.0)
    read(step(0, [3, 2], [1, 16], [1, 0], admissions=[full]), LIMITS)
