"""Traces: text files that hold calls of the core and, indented below each, what it answered.

Lines that begin in the first column are input and are written by hand; indented ones are output, and
`python -m tests.scheduler.core.rewrite_traces` writes them anew. So a change of a scheduling decision is a diff that
can be read. Inputs (# begins a comment; lists are separated by commas, a..b is a range):

    config num_blocks=8 block_size=4 ...        fields of CoreConfig; must come first
    add ID prompt=1..8 max_tokens=4 [stop=0,2] [priority=-1] [salt=x] [seed=7] [deadline=100]
    add ID,ID prompt=1..8 max_tokens=4 ...      the sequences of one request; their seeds count up
    schedule
    result STEP [tokens=17,18] [failed=ROW,ROW] [epoch=0]      tokens of the rows that sample, in order of the plan
    abort ID
    expire NOW
    set_rates prefill_tokens_per_s=1000 copy_bytes_per_s=1000000
    lose_worker num_blocks=8 [num_host_blocks=4]
    counters
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scheduler.core.config import CoreConfig
from scheduler.core.errors import SchedulerError
from scheduler.core.plan import BlockCopies, StepPlan
from scheduler.core.result import End, EndReason, RowFlag, StepOutput, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec

FOLDER = Path(__file__).parents[2] / "traces"


def traces() -> list[Path]:
    """All trace files, in order."""
    return sorted(FOLDER.glob("*.txt"))


def rewrite(text: str) -> str:
    """The same trace with its output as the core answers now. Raises ValueError for an input that makes no sense."""
    lines: list[str] = []
    run: _Run | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(" "):
            continue
        lines.append(line)
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            if words[0] == "config":
                run = _Run(_config(_options(words[1:])))
            elif run is None:
                raise ValueError("config must come first")
            else:
                lines += [f"  {answer}" for answer in run.call(words[0], words[1:])]
        except (KeyError, TypeError, ValueError, SchedulerError) as error:
            raise ValueError(f"line {number}, {line!r}: {error}") from error
    return "\n".join(lines) + "\n"


class _Run:
    def __init__(self, config: CoreConfig) -> None:
        self._core = Scheduler(config)
        self._plans: dict[int, StepPlan] = {}

    def call(self, verb: str, words: list[str]) -> list[str]:
        """What the core answers to one line of input, in lines."""
        return [*self._answer(verb, words), *([] if verb == "counters" else [self._state()])]

    def _answer(self, verb: str, words: list[str]) -> list[str]:
        core = self._core
        options = _options([word for word in words if "=" in word])
        match verb:
            case "add":
                try:
                    core.add_group(_specs(words[0], options))
                except SchedulerError as error:
                    return [f"{type(error).__name__}: {error}"]
                return []
            case "schedule":
                plan = core.schedule()
                if not isinstance(plan, StepPlan):
                    return [type(plan).__name__]
                self._plans[plan.step_id] = plan
                return _plan_lines(plan)
            case "result":
                return _output_lines(core.update(self._result(int(words[0]), options)))
            case "abort":
                end = core.finish(int(words[0]), EndReason.ABORT)
                return ["nobody"] if end is None else [_end_line(end)]
            case "expire":
                return [_end_line(end) for end in core.expire(int(words[0]))]
            case "set_rates":
                core.set_rates(**{name: int(value) for name, value in options.items()})
                return []
            case "lose_worker":
                return [_end_line(end) for end in core.requeue_all(**{name: int(n) for name, n in options.items()})]
            case "counters":
                return [f"{name} {count}" for name, count in asdict(core.counters).items() if count]
            case _:
                raise ValueError(f"no such verb: {verb}")

    def _result(self, step_id: int, options: dict[str, str]) -> StepResult:
        plan = self._plans[step_id]
        failed = _integers(options.get("failed", ""))
        tokens = _integers(options.get("tokens", ""))
        return StepResult(
            epoch=int(options.get("epoch", self._core.epoch)),
            step_id=step_id,
            num_sampled=tuple(
                samples if row not in failed else 0 for row, samples in zip(plan.rows, plan.max_samples, strict=True)
            ),
            tokens=tokens,
            flags=tuple(RowFlag.NON_FINITE if row in failed else RowFlag.OK for row in plan.rows) if failed else (),
        )

    def _state(self) -> str:
        core = self._core.snapshot()
        used = sum(count > 0 for count in core.block_references)
        parts = [
            "waiting " + (_join(sequence.sequence_id for sequence in core.waiting) or "-"),
            "running " + (_join(sequence.sequence_id for sequence in core.running) or "-"),
            "in flight " + (_join(core.plans_in_flight) or "-"),
            f"blocks {used} used, {core.num_cached_blocks} cached, {core.num_free_blocks} free",
        ]
        if core.num_host_blocks:
            parts.insert(2, "swapped " + (_join(sequence.sequence_id for sequence in core.swapped) or "-"))
            parts.append(
                f"host {core.num_host_blocks - core.num_free_host_blocks} used, {core.num_free_host_blocks} free"
            )
        return "= " + " | ".join(parts)


def _plan_lines(plan: StepPlan) -> list[str]:
    lines = [f"plan {plan.step_id}"]
    lines += [f"  release row {row}" for row in plan.released_rows]
    lines += _copy_lines("swap out", plan.swap_out, "block", "host block")
    lines += _copy_lines("swap in", plan.swap_in, "host block", "block")
    lines += _copy_lines("copy on write", plan.copy_on_write, "block", "block")
    for admission in plan.admissions:
        lines.append(
            f"  admit row {admission.row}: sequence {admission.sequence_id}, tokens {_ranges(admission.token_ids)}, "
            f"{admission.num_prompt_tokens} of prompt, {admission.num_computed_tokens} computed, "
            f"output {admission.output_index}, seed {admission.seed}, blocks {_join(admission.blocks)}"
        )
    for row, index, block in zip(plan.edit_rows, plan.edit_indices, plan.edit_blocks, strict=True):
        lines.append(f"  table row {row}: [{index}] = block {block}")
    for row, count, samples in zip(plan.rows, plan.num_tokens, plan.max_samples, strict=True):
        lines.append(f"  compute row {row}: {count} token{'s' * (count > 1)}{', sample' * samples}")
    return lines


def _copy_lines(phase: str, copies: BlockCopies, source: str, destination: str) -> list[str]:
    pairs = zip(copies.sources, copies.destinations, strict=True)
    return [f"  {phase}: {source} {one} to {destination} {other}" for one, other in pairs]


def _output_lines(output: StepOutput) -> list[str]:
    pairs = zip(output.sequence_ids, output.token_ids, strict=True)
    tokens = [f"sequence {sequence_id} gets {token}" for sequence_id, token in pairs]
    return [*tokens, *(_end_line(end) for end in output.ends)]


def _end_line(end: End) -> str:
    stop = "" if end.stop_token_id is None else f" (stop token {end.stop_token_id})"
    return f"sequence {end.sequence_id} ends: {end.reason.value}, {end.num_output_tokens} tokens{stop}"


def _specs(sequence_ids: str, options: dict[str, str]) -> tuple[SequenceSpec, ...]:
    deadline = options.pop("deadline", None)
    first = SequenceSpec(
        sequence_id=0,
        prompt=_integers(options.pop("prompt")),
        max_tokens=int(options.pop("max_tokens")),
        stop_token_ids=frozenset(_integers(options.pop("stop", "0"))),
        priority=int(options.pop("priority", "0")),
        cache_salt=options.pop("salt", ""),
        seed=int(options.pop("seed", "0")),
        deadline_ns=None if deadline is None else int(deadline),
        **options,  # type: ignore[arg-type]  # an unknown option is a TypeError
    )
    return tuple(
        replace(first, sequence_id=sequence_id, seed=first.seed + index)
        for index, sequence_id in enumerate(_integers(sequence_ids))
    )


def _config(options: dict[str, str]) -> CoreConfig:
    fields: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in options.items()}
    return CoreConfig(**fields)


def _options(words: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _integers(text: str) -> tuple[int, ...]:
    """`1,5..7` is 1, 5, 6, 7."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, dots, last = part.partition("..")
        numbers += range(int(first), int(last) + 1) if dots else [int(first)]
    return tuple(numbers)


def _ranges(numbers: tuple[int, ...]) -> str:
    """The inverse of `_integers`, with runs of three and more as ranges."""
    parts: list[str] = []
    begin = 0
    while begin < len(numbers):
        end = begin + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        run = numbers[begin:end]
        parts += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else map(str, run)
        begin = end
    return ",".join(parts)


def _join(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
