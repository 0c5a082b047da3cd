"""A worker without tensors: executes plans as a fold over rows and mistrusts every one of them.

It keeps a KV cache of fingerprints. Each step first writes the slots of all its rows, then checks that each row finds,
in every slot that it attends to, exactly the fingerprint of its own prefix at that position. So a block that was lost,
handed out twice, taken back too early or found under a wrong key fails the step that reads it, and the message says
who wrote what is there instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from scheduler.core.config import CoreConfig
from scheduler.core.plan import Admission, BlockCopies, StepPlan
from scheduler.core.result import RowFlag, StepResult
from tests.scheduler.core import toy_model


class ContractError(AssertionError):
    """A plan that a worker must never be sent."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What one slot of the KV cache holds.

    broken_by: number of the fault that made this KV not finite, or that of KV it was computed from.
    """

    position: int
    token: int
    fingerprint: int
    sequence_id: int
    step_id: int
    broken_by: int | None


@dataclass(slots=True)
class Row:
    """A worker's row; all that it knows came in its admission or was sampled since."""

    sequence_id: int
    seed: int
    num_prompt_tokens: int
    tokens: list[int]
    fingerprints: list[int]
    blocks: list[int]
    num_computed: int
    scores_from: int | None
    """Prompt tokens before it, the first not counted, have their logprobs; None if nobody asks for any."""
    written: list[int] = field(default_factory=list)
    """Slots written in the step at hand."""


class ToyWorker:
    """One session of a worker: begins with no rows and an empty KV cache."""

    def __init__(self, config: CoreConfig, *, num_blocks: int, epoch: int, num_host_blocks: int = 0) -> None:
        self._config = config
        self._num_host_blocks = num_host_blocks
        self._host_slots: list[Slot | None] = [None] * (num_host_blocks * config.block_size)
        self._num_blocks = num_blocks
        self._epoch = epoch
        self._rows: dict[int, Row] = {}
        self._slots: list[Slot | None] = [None] * (num_blocks * config.block_size)
        self._last_step_id: int | None = None
        self.blame: dict[tuple[int, int], int] = {}
        """Step and sequence of rows that were not finite: the number of the fault."""

    def execute(self, plan: StepPlan, *, fault: tuple[int, int] | None = None) -> StepResult:
        """Runs one step. fault: a number, and the place among the scheduled rows of the one whose KV it breaks."""
        self._begin(plan)
        for released in plan.released_rows:
            _require(released in self._rows, plan, f"releases row {released}, which holds nothing")
            del self._rows[released]
        self._copy(plan, plan.swap_out, self._slots, self._host_slots)
        self._copy(plan, plan.swap_in, self._host_slots, self._slots)
        self._copy(plan, plan.copy_on_write, self._slots, self._slots)
        for admission in plan.admissions:
            self._admit(plan, admission)
        for edited, index, block in zip(plan.edit_rows, plan.edit_indices, plan.edit_blocks, strict=True):
            self._edit(plan, edited, index, block)
        scheduled = [self._rows[row] for row in plan.rows if row in self._rows]
        _require(len(scheduled) == len(plan.rows), plan, "schedules a row that holds nothing")
        for row, count, samples in zip(scheduled, plan.num_tokens, plan.max_samples, strict=True):
            self._write(plan, row, count, samples)
        if fault is not None:
            number, place = fault
            self._break(scheduled[place], number)
        finite = self._attend(plan, scheduled)
        result = self._sample(plan, scheduled, finite)
        scores = [_scored(row, count) for row, count in zip(scheduled, plan.num_tokens, strict=True)]
        if not any(scores):
            return result
        return replace(
            result,
            num_scored=tuple(map(len, scores)),
            scored_logprobs=tuple(float(position) for some in scores for position in some),
        )

    def _copy(
        self, plan: StepPlan, copies: BlockCopies, sources: list[Slot | None], destinations: list[Slot | None]
    ) -> None:
        """One phase: all sources are read before any destination is written."""
        size = self._config.block_size
        _require(len(set(copies.destinations)) == len(copies), plan, "copies two blocks into one")
        if sources is destinations:
            _require(
                set(copies.sources).isdisjoint(copies.destinations), plan, "copies from a block that it overwrites"
            )
        for blocks, memory in ((copies.sources, sources), (copies.destinations, destinations)):
            _require(all(0 <= block < len(memory) // size for block in blocks), plan, f"copies {copies}, out of range")
        read = [sources[block * size : (block + 1) * size] for block in copies.sources]
        for block, slots in zip(copies.destinations, read, strict=True):
            destinations[block * size : (block + 1) * size] = slots

    def _begin(self, plan: StepPlan) -> None:
        config = self._config
        _require(self._last_step_id in (None, plan.step_id - 1), plan, f"follows step {self._last_step_id}")
        self._last_step_id = plan.step_id
        _require(len(set(plan.released_rows)) == len(plan.released_rows), plan, "releases a row twice")
        _require(len(set(plan.rows)) == len(plan.rows), plan, "schedules a row twice")
        _require(len(plan.rows) <= config.max_num_seqs, plan, "schedules more rows than there are")
        _require(sum(plan.num_tokens) <= config.max_num_batched_tokens, plan, "exceeds the token budget")

    def _admit(self, plan: StepPlan, admission: Admission) -> None:
        row, tokens = admission.row, admission.token_ids
        _require(0 <= row < self._config.max_num_seqs, plan, f"admits row {row}")
        _require(row not in self._rows, plan, f"admits row {row}, which is taken")
        _require(
            admission.sequence_id not in (other.sequence_id for other in self._rows.values()),
            plan,
            f"admits sequence {admission.sequence_id} twice",
        )
        _require(0 < admission.num_prompt_tokens <= len(tokens), plan, "admits without a prompt")
        _require(
            admission.output_index == len(tokens) - admission.num_prompt_tokens,
            plan,
            f"admits with output index {admission.output_index}",
        )
        _require(0 <= admission.num_computed_tokens < len(tokens), plan, "admits with no token left to compute")
        self._rows[row] = Row(
            sequence_id=admission.sequence_id,
            seed=admission.seed,
            num_prompt_tokens=admission.num_prompt_tokens,
            tokens=list(tokens),
            fingerprints=toy_model.fingerprints(tokens),
            blocks=[],
            num_computed=admission.num_computed_tokens,
            scores_from=None if admission.sampling.num_prompt_logprobs is None else admission.num_scored_tokens,
        )
        lacking = min(admission.num_computed_tokens, admission.num_prompt_tokens - 1) - admission.num_scored_tokens
        wants_scores = admission.sampling.num_prompt_logprobs is not None
        _require(not wants_scores or lacking <= 0, plan, f"admits with {lacking} tokens that were never scored")
        for index, block in enumerate(admission.blocks):
            self._edit(plan, row, index, block)

    def _edit(self, plan: StepPlan, row: int, index: int, block: int) -> None:
        _require(row in self._rows, plan, f"edits the table of row {row}, which holds nothing")
        blocks = self._rows[row].blocks
        _require(index == len(blocks), plan, f"leaves a hole in the table of row {row} before {index}")
        _require(0 <= block < self._num_blocks, plan, f"names block {block} of {self._num_blocks}")
        _require(block not in blocks, plan, f"names block {block} twice in the table of row {row}")
        blocks.append(block)

    def _write(self, plan: StepPlan, row: Row, count: int, samples: int) -> None:
        begin, end = row.num_computed, row.num_computed + count
        who = f"sequence {row.sequence_id}"
        _require(count >= 1, plan, f"computes nothing of {who}")
        _require(end <= len(row.tokens), plan, f"computes {who} up to {end}, of {len(row.tokens)} known tokens")
        _require(samples == (end == len(row.tokens)), plan, f"samples {samples} of {who} at {end}")
        _require(end <= len(row.blocks) * self._config.block_size, plan, f"has no block for {who} at {end - 1}")
        row.written = [self._slot(row, position) for position in range(begin, end)]
        for position, slot in zip(range(begin, end), row.written, strict=True):
            self._slots[slot] = Slot(
                position, row.tokens[position], row.fingerprints[position], row.sequence_id, plan.step_id, None
            )
        row.num_computed = end

    def _attend(self, plan: StepPlan, scheduled: list[Row]) -> list[bool]:
        """Checks what every row reads; returns which rows read finite KV only.

        A row admitted in this very step may read what another writes in it, so broken KV spreads in the order of rows:
        a row never shares what a later one writes.
        """
        finite = []
        for row in scheduled:
            faults = set()
            for position in range(row.num_computed):
                slot = self._slots[self._slot(row, position)]
                if slot is None or slot.fingerprint != row.fingerprints[position]:
                    raise ContractError(f"step {plan.step_id}: {row} finds {slot} at position {position}")
                if slot.broken_by is not None:
                    faults.add(slot.broken_by)
            if faults:
                self._break(row, min(faults))
                self.blame[plan.step_id, row.sequence_id] = min(faults)
            finite.append(not faults)
        return finite

    def _sample(self, plan: StepPlan, scheduled: list[Row], finite: list[bool]) -> StepResult:
        num_sampled, tokens, flags = [], [], []
        for row, samples, well in zip(scheduled, plan.max_samples, finite, strict=True):
            num_sampled.append(samples if well else 0)
            flags.append(RowFlag.NON_FINITE if samples and not well else RowFlag.OK)
            if not samples:
                continue
            # A broken row goes on with some token, as a real one does: the plan after this one is on its way already.
            token = toy_model.sample(row.fingerprints[-1], row.seed, len(row.tokens) - row.num_prompt_tokens)
            row.tokens.append(token)
            row.fingerprints.append(toy_model.extend(row.fingerprints[-1], token))
            if well:
                tokens.append(token)
        return StepResult(
            epoch=self._epoch,
            step_id=plan.step_id,
            num_sampled=tuple(num_sampled),
            tokens=tuple(tokens),
            flags=tuple(flags) if any(flags) else (),
        )

    def _break(self, row: Row, fault: int) -> None:
        for index in row.written:
            slot = self._slots[index]
            assert slot is not None
            self._slots[index] = replace(slot, broken_by=fault)

    def _slot(self, row: Row, position: int) -> int:
        index, offset = divmod(position, self._config.block_size)
        return row.blocks[index] * self._config.block_size + offset


def _scored(row: Row, count: int) -> range:
    """Positions of the prompt tokens that the last `count` computed tokens predict and that lack their logprobs."""
    if row.scores_from is None:
        return range(0)
    first = max(row.num_computed - count, row.scores_from)
    return range(first + 1, min(row.num_computed, row.num_prompt_tokens - 1) + 1)


def _require(condition: bool, plan: StepPlan, complaint: str) -> None:
    if not condition:
        raise ContractError(f"step {plan.step_id} {complaint}")
