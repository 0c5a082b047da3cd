"""The table as a fold over plans and tokens, the batches derived from it, and every plan that does not fit its rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from octavo.worker.v1alpha1 import worker_pb2 as pb
from tests.worker.plans import LIMITS, admission, read, step
from worker.device_io import HostIO, StagedIO
from worker.input_batch import InputBatch, build_input_batch
from worker.sampler import SamplingColumns
from worker.sequence_table import SequenceTable
from worker.step import PlanError, RowFlag, StepPlan


def run(table: SequenceTable, message: pb.StepPlan, *sampled: int) -> InputBatch:
    """Applies a plan, builds its batch, commits the sampled tokens. -> the batch as it was before that."""
    plan = read(message)
    table.apply(plan)
    batch = build_input_batch(table, plan, LIMITS.block_size, HostIO())
    before = InputBatch(**{name: getattr(batch, name).clone() for name in InputBatch.__slots__})
    table.commit(plan, np.array(sampled, np.int32))
    return before


def columns(batch: InputBatch) -> dict[str, list[object]]:
    return {name: getattr(batch, name).tolist() for name in InputBatch.__slots__}


def test_a_prompt_in_chunks_then_decode() -> None:
    table = SequenceTable(LIMITS)
    prompt = [10, 11, 12, 13, 14, 15]
    first = run(table, step(0, [2], [4], [0], admissions=[admission(2, prompt, [7])]))
    assert columns(first) == {
        "token_ids": [10, 11, 12, 13],
        "positions": [0, 1, 2, 3],
        "slot_mapping": [28, 29, 30, 31],
        "query_start_loc": [0, 4],
        "seq_lens": [4],
        "block_tables": [[7]],
        "logits_indices": [],
    }
    edits = pb.TableEdits(rows=[2], indices=[1], blocks=[3])
    second = run(table, step(1, [2], [2], [1], table_edits=edits), 50)
    assert columns(second) == {
        "token_ids": [14, 15],
        "positions": [4, 5],
        "slot_mapping": [12, 13],
        "query_start_loc": [0, 2],
        "seq_lens": [6],
        "block_tables": [[7, 3]],
        "logits_indices": [1],
    }
    third = run(table, step(2, [2]), 51)
    assert columns(third) == {
        "token_ids": [50],
        "positions": [6],
        "slot_mapping": [14],
        "query_start_loc": [0, 1],
        "seq_lens": [7],
        "block_tables": [[7, 3]],
        "logits_indices": [0],
    }
    assert run(table, step(3, [2]), 52).token_ids.tolist() == [51]


def test_rows_of_a_mixed_step_come_in_the_order_of_the_plan() -> None:
    table = SequenceTable(LIMITS)
    run(table, step(0, [0], [2], admissions=[admission(0, [1, 2], [5])]), 60)
    batch = run(
        table,
        step(1, [3, 0, 1], [3, 1, 2], [1, 1, 0], admissions=[
            admission(3, [20, 21, 22, 23, 24], [8, 9], num_computed_tokens=2),
            admission(1, [30, 31, 32], [11]),
        ]),
        61,
        62,
    )  # fmt: skip
    assert columns(batch) == {
        "token_ids": [22, 23, 24, 60, 30, 31],
        "positions": [2, 3, 4, 2, 0, 1],
        "slot_mapping": [34, 35, 36, 22, 44, 45],
        "query_start_loc": [0, 3, 4, 6],
        "seq_lens": [5, 3, 2],
        "block_tables": [[8, 9], [5, 0], [11, 0]],
        "logits_indices": [2, 3],
    }
    kinds = {name: getattr(batch, name).dtype for name in InputBatch.__slots__}
    assert kinds == {
        "token_ids": torch.int64,
        "positions": torch.int32,
        "slot_mapping": torch.int64,
        "query_start_loc": torch.int32,
        "seq_lens": torch.int32,
        "block_tables": torch.int32,
        "logits_indices": torch.int64,
    }
    # Row 1 has a token of its prompt left; rows 3 and 0 go on with what they sampled.
    assert run(table, step(2, [0, 1, 3]), 1, 2, 3).token_ids.tolist() == [62, 32, 61]


def test_a_recompute_is_the_same_as_never_having_stopped() -> None:
    straight, preempted = SequenceTable(LIMITS), SequenceTable(LIMITS)
    start = step(0, [1], [3], admissions=[admission(1, [1, 2, 3], [4, 5], temperature=1.0, seed=9)])
    for table in (straight, preempted):
        run(table, start, 70)
        run(table, step(1, [1]), 71)
    again = admission(
        0, [1, 2, 3, 70, 71], [6, 7], num_prompt_tokens=3, output_index=2, temperature=1.0, seed=9
    )  # fmt: skip
    run(preempted, step(2, [0], [5], released_rows=[1], admissions=[again]), 72)
    run(straight, step(2, [1]), 72)
    assert run(straight, step(3, [1]), 73).positions.tolist() == run(preempted, step(3, [0]), 73).positions.tolist()
    assert straight.token_ids[1, :7].tolist() == preempted.token_ids[0, :7].tolist()
    one, other = straight.sampling(read(step(4, [1]))), preempted.sampling(read(step(4, [0])))
    assert (one.output_index, one.seeds, one.temperature) == (other.output_index, other.seeds, other.temperature)
    assert one.output_index.tolist() == [4]


def test_parts_are_applied_in_order() -> None:
    table = SequenceTable(LIMITS)
    run(table, step(0, [1], [2], admissions=[admission(1, [1, 2], [4], num_logprobs=3, top_k=5)]), 9)
    # Row 1 is released, admitted again and edited in one plan; nothing of its past shows.
    edits = pb.TableEdits(rows=[1, 1], indices=[2, 1], blocks=[12, 11])
    batch = run(
        table, step(1, [1], [9], released_rows=[1], admissions=[admission(1, range(9), [10])], table_edits=edits), 8
    )
    assert batch.block_tables.tolist() == [[10, 11, 12]]
    sampling = table.sampling(read(step(2, [1])))
    assert (sampling.num_logprobs.tolist(), sampling.top_k.tolist(), sampling.output_index.tolist()) == ([-1], [0], [1])


def test_an_edit_replaces_a_block() -> None:
    table = SequenceTable(LIMITS)
    run(table, step(0, [0], [3], admissions=[admission(0, [1, 2, 3], [4])]), 9)
    batch = run(table, step(1, [0], table_edits=pb.TableEdits(rows=[0], indices=[0], blocks=[6])), 8)
    assert batch.slot_mapping.tolist() == [6 * LIMITS.block_size + 3]


def test_all_the_rows_and_the_whole_length_can_be_used() -> None:
    table = SequenceTable(LIMITS)
    sequences = [admission(row, range(1, 5), [row * 4]) for row in range(4)]
    run(table, step(0, range(4), [4] * 4, admissions=sequences), 1, 2, 3, 4)
    for length in range(5, 16):
        edits = pb.TableEdits(rows=range(4), indices=[(length - 1) // 4] * 4, blocks=range(16, 20))
        run(table, step(length, range(4), table_edits=edits if length % 4 == 1 else None), *[length] * 4)
    assert table.num_tokens.tolist() == [16] * 4
    assert table.token_ids[2].tolist() == [1, 2, 3, 4, 3, *range(5, 16)]


def inputs(table: SequenceTable, plan: StepPlan) -> dict[str, object]:
    """All that a step of a plan just applied reads."""
    batch = columns(build_input_batch(table, plan, LIMITS.block_size, HostIO()))
    sampling = table.sampling(plan)
    return batch | {name: getattr(sampling, name).tolist() for name in SamplingColumns.__slots__}


class Plans:
    """Random plans that fit: rows come and go, prompts are computed in parts, some rows wait, blocks are exchanged."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.Philox(seed))
        self._lengths: dict[int, list[int]] = {}  # of rows in use: num_computed, num_tokens and blocks
        self._id = 0

    def _chance(self, percent: int) -> bool:
        return int(self._random.integers(100)) < percent

    def next(self) -> pb.StepPlan:
        self._id += 1
        full = [row for row, (_, known, _) in self._lengths.items() if known == LIMITS.max_model_len]
        released = full + [row for row in self._lengths if row not in full and self._chance(3)]
        for row in released:
            del self._lengths[row]
        free = [row for row in range(LIMITS.num_rows) if row not in self._lengths]
        admissions = [self._admission(row) for row in free if self._chance(30) or not self._lengths]
        rows = [row for row in self._lengths if not self._chance(3)] or list(self._lengths)
        if self._chance(3):
            rows = self._random.permutation(rows).tolist()
        num_tokens, samples, edits = [], [], []
        for row in rows:
            computed, known, blocks = self._lengths[row]
            part = known - computed - (known - computed > 1 and self._chance(30))
            needed = -(-(computed + part) // LIMITS.block_size)
            edits += [(row, index) for index in range(blocks, needed)]
            if self._chance(3):
                edits.append((row, int(self._random.integers(blocks))))
            sample = int(computed + part == known)
            num_tokens.append(part)
            samples.append(sample)
            self._lengths[row] = [computed + part, known + sample, max(blocks, needed)]
        table_edits = pb.TableEdits(
            rows=[row for row, _ in edits],
            indices=[index for _, index in edits],
            blocks=self._random.integers(LIMITS.num_device_blocks, size=len(edits)),
        )
        return step(
            self._id,
            rows,
            num_tokens,
            samples,
            released_rows=released,
            admissions=admissions,
            table_edits=table_edits,
        )

    def _admission(self, row: int) -> pb.Admission:
        length, spare = (int(number) for number in self._random.integers([1, 0], [7, 3]))
        blocks = self._random.integers(LIMITS.num_device_blocks, size=-(-length // LIMITS.block_size) + spare)
        self._lengths[row] = [0, length, min(len(blocks), LIMITS.max_blocks)]
        return admission(
            row,
            self._random.integers(LIMITS.logits_width, size=length),
            blocks[: LIMITS.max_blocks],
            output_index=self._random.integers(5),
            seed=self._random.integers(100),
            temperature=self._random.random(),
        )


@pytest.mark.parametrize("seed", range(20))
def test_what_is_carried_from_step_to_step_is_what_the_rows_say(seed: int) -> None:
    carrying, forgetting = SequenceTable(LIMITS), SequenceTable(LIMITS)
    plans, carried = Plans(seed), 0
    for number in range(300):
        plan = read(plans.next())
        for table in (carrying, forgetting):
            table.apply(plan)
        carried += carrying.decoding is not None
        assert inputs(carrying, plan) == inputs(forgetting, plan)
        tokens = np.arange(number, number + int(plan.max_samples.sum()), dtype=np.int32) % LIMITS.logits_width
        for table in (carrying, forgetting):
            table.commit(plan, tokens)
        forgetting.decoding = None
        for name in ("token_ids", "num_tokens", "num_computed", "num_blocks", "block_tables"):
            assert getattr(carrying, name).tolist() == getattr(forgetting, name).tolist(), name
    assert 60 < carried < 240


def test_a_batch_serves_again_while_the_same_rows_decode_in_the_same_blocks() -> None:
    table = SequenceTable(LIMITS)
    table.apply(
        plan := read(step(0, [0, 1], [2, 1], admissions=[admission(0, [1, 2], [3, 4]), admission(1, [5], [6, 7])]))
    )
    batches = [build_input_batch(table, plan, LIMITS.block_size, HostIO())]
    table.commit(plan, np.array([7, 8], np.int32))
    for step_id in range(1, 5):
        table.apply(plan := read(step(step_id, [0, 1])))
        batches.append(build_input_batch(table, plan, LIMITS.block_size, HostIO()))
        table.commit(plan, np.array([7, 8], np.int32))
    # The prompts' step is one of its own; the fourth token begins a block, and takes another table.
    assert [one is other for one, other in pairwise(batches)] == [False, True, False, True]


def test_where_tensors_are_copies_each_step_has_its_own() -> None:
    table, batches = SequenceTable(LIMITS), []
    for step_id in range(2):
        table.apply(plan := read(step(step_id, [0], admissions=[] if step_id else [admission(0, [1], [3])])))
        batches.append(
            build_input_batch(table, plan, LIMITS.block_size, StagedIO(torch.device("cpu"), page_locked=False))
        )
        table.commit(plan, np.array([7], np.int32))
    assert [batch.token_ids.tolist() + batch.positions.tolist() for batch in batches] == [[1, 0], [7, 1]]


DECODING_UNFIT = {
    "beyond the blocks": (step(9, [0, 1]), "scheduled.num_tokens"),
    "row released": (step(9, [0, 1], released_rows=[1]), "scheduled.rows"),
    "more tokens": (step(9, [0, 1], [1, 2]), "scheduled.num_tokens"),
}


@pytest.mark.parametrize(("message", "column"), DECODING_UNFIT.values(), ids=DECODING_UNFIT)
def test_rows_that_decode_are_held_to_the_same_rules(message: pb.StepPlan, column: str) -> None:
    table = SequenceTable(LIMITS)
    run(table, step(0, [0, 1], admissions=[admission(0, [1], [3]), admission(1, [1], [4, 5])]), 8, 9)
    for step_id in range(1, 4):
        run(table, step(step_id, [0, 1]), 8, 9)
    with pytest.raises(PlanError) as caught:
        table.apply(read(message))
    assert caught.value.column == column


def test_rows_that_decode_stop_at_the_whole_length() -> None:
    table = SequenceTable(LIMITS)
    run(table, step(0, [0], [10], admissions=[admission(0, range(10), range(4))]), 8)
    for step_id in range(1, 6):
        run(table, step(step_id, [0]), 8)
    with pytest.raises(PlanError, match="max_model_len"):
        table.apply(read(step(6, [0])))


def ready() -> SequenceTable:
    """Row 0 holds four computed tokens, one sampled one, and one block; row 1 a prompt of ten with two computed."""
    table = SequenceTable(LIMITS)
    sequences = [admission(0, [1, 2, 3, 4], [0]), admission(1, range(10), [1, 2, 3])]
    run(table, step(5, [0, 1], [4, 2], [1, 0], admissions=sequences), 50)
    return table


GROW = pb.TableEdits(rows=[0], indices=[1], blocks=[9])

UNFIT = {
    "same step id": (step(5, [1]), "step_id", 5, "above 5"),
    "older step id": (step(4, [1]), "step_id", 4, "above 5"),
    "free row released": (step(6, [1], released_rows=[2]), "released_rows", 2, "free"),
    "row admitted over another": (step(6, [1], admissions=[admission(0, [1], [4])]), "admissions.row", 0, "in use"),
    "free row edited": (
        step(6, [1], table_edits=pb.TableEdits(rows=[3], indices=[0], blocks=[9])),
        "table_edits.rows",
        3,
        "not admitted",
    ),
    "gap in a table": (
        step(6, [1], table_edits=pb.TableEdits(rows=[0], indices=[2], blocks=[9])),
        "table_edits.indices",
        2,
        "no gaps",
    ),
    "entry set twice": (
        step(6, [1], table_edits=pb.TableEdits(rows=[0, 0], indices=[1, 1], blocks=[9, 10])),
        "table_edits",
        2,
        "distinct",
    ),
    "free row scheduled": (step(6, [1, 2], [1, 1], [0, 1]), "scheduled.rows", 2, "not admitted"),
    "released row scheduled": (step(6, [0], released_rows=[0]), "scheduled.rows", 0, "not admitted"),
    "beyond the known tokens": (step(6, [0], [2], table_edits=GROW), "scheduled.num_tokens", 2, "row 0"),
    "beyond the prompt": (step(6, [1], [9]), "scheduled.num_tokens", 9, "row 1"),
    "beyond the blocks": (step(6, [0]), "scheduled.num_tokens", 1, "row 0: more than the row's blocks"),
    "sample inside a prompt": (step(6, [1], [3], [1]), "scheduled.max_samples", 1, "row 1"),
}


@pytest.mark.parametrize(("message", "column", "value", "limit"), UNFIT.values(), ids=UNFIT)
def test_a_plan_that_does_not_fit_the_rows_is_refused_by_name(
    message: pb.StepPlan, column: str, value: int, limit: str
) -> None:
    table, plan = ready(), read(message)
    with pytest.raises(PlanError) as caught:
        table.apply(plan)
    assert (caught.value.column, caught.value.value) == (column, value)
    assert limit in caught.value.limit


def test_what_the_refused_plans_are_variations_of_is_accepted() -> None:
    run(ready(), step(6, [0, 1], [1, 8], [1, 1], table_edits=GROW), 1, 2)


def test_a_full_row_cannot_sample() -> None:
    table = SequenceTable(LIMITS)
    with pytest.raises(PlanError, match="max_model_len"):
        table.apply(read(step(0, [0], [16], admissions=[admission(0, range(16), range(4))])))


def scored(table: SequenceTable, message: pb.StepPlan, *sampled: int) -> tuple[list[int], list[int], list[int]] | None:
    """Of a step: prompt tokens scored per row, their ids, and where the tokens before them are in the step."""
    plan = read(message)
    table.apply(plan)
    scoring = table.scoring(plan)
    table.commit(plan, np.array(sampled, np.int32))
    return None if scoring is None else tuple(map(list, (scoring.num_scored, scoring.targets, scoring.places)))


def test_each_prompt_token_but_the_first_is_scored_once_after_the_one_before_it() -> None:
    table = SequenceTable(LIMITS)
    rows = [admission(0, [9], [8]), admission(2, [10, 11, 12, 13, 14, 15], [7, 3], num_prompt_logprobs=1)]
    assert scored(table, step(0, [0, 2], [1, 4], [1, 0], admissions=rows), 60) == (
        [0, 4],
        [11, 12, 13, 14],
        [1, 2, 3, 4],
    )
    # The prompt's last token predicts the output, which is not scored.
    assert scored(table, step(1, [2, 0], [2, 1]), 50, 61) == ([1, 0], [15], [0])
    assert scored(table, step(2, [2, 0]), 51, 62) is None


def test_what_was_scored_before_a_preemption_is_not_scored_again() -> None:
    table = SequenceTable(LIMITS)
    again = admission(1, [10, 11, 12, 13, 50], [7, 3], num_prompt_tokens=4, output_index=1, num_prompt_logprobs=0)
    again.num_scored_tokens = 2
    assert scored(table, step(0, [1], [5], admissions=[again]), 51) == ([1], [13], [2])
    assert scored(table, step(1, [1]), 52) is None


def test_a_grammar_on_a_worker_without_a_tokenizer_ends_its_row_alone() -> None:
    table = SequenceTable(LIMITS)
    rows = [admission(0, [9], [8]), admission(2, [10], [7], grammar="start: /a/", eos_token_ids=[2])]
    plan = read(step(0, [0, 2], admissions=rows))
    table.apply(plan)
    adjustments = table.adjustments(plan)
    assert adjustments is not None
    logits = torch.zeros((2, LIMITS.logits_width))
    adjustments.apply(logits, HostIO())
    flags = np.zeros(2, np.int32)
    adjustments.flag(flags)
    assert flags.tolist() == [RowFlag.OK, RowFlag.DEAD_END]
    assert torch.isfinite(logits).all(dim=1).tolist() == [True, False]
