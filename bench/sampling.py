"""`python -m bench.sampling [MODEL]`: what drawing 256 tokens costs, as a part of the model's step on a CPU.

A worker's runner decodes 256 rows with every kind of sampling parameter among them, then as many with grammars, by
turns. Within each step the time from the model's logits to the tokens is taken, and set against the rest of the same
step, so that a slow spell of the machine hits both. Masks of grammars are computed beside the model; what counts is the
wait for them. The median share goes to standard output, all medians in milliseconds to bench/results/sampling.jsonl.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher

from bench.machine import machine
from worker.assembly import load_worker
from worker.backend.native_sampler import NativeSampler
from worker.config import WorkerConfig
from worker.logit_adjuster import Adjustments
from worker.step import Admission, Limits, LogitRules, Sampling, StepPlan, plain_plan

_RESULTS = Path("bench/results/sampling.jsonl")
_MODEL = ".models/SmolLM2-135M-Instruct.Q4_1.gguf"
_ROWS = 256
_PROMPT = 8
_STEPS = 16
_BLOCK_SIZE = 16
_BLOCKS_PER_ROW = -(-(_PROMPT + _STEPS + 1) // _BLOCK_SIZE)
_SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array"}}}'

_PLAIN = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "num_logprobs": None}
_DRAWN = _PLAIN | {"temperature": 0.9}


def _ids(*values: int) -> Any:
    return np.array(values, np.int64)


def _mixed(grammar: bool) -> list[Sampling]:
    """Of each row, one kind after the other."""
    kinds: list[dict[str, Any]] = [
        _PLAIN,
        _DRAWN,
        _DRAWN | {"top_k": 50},
        _DRAWN | {"top_p": 0.9},
        _DRAWN | {"min_p": 0.05, "top_p": 0.95, "top_k": 40},
        _DRAWN | {"num_logprobs": 5},
        _PLAIN | {"rules": LogitRules(presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1)},
        _DRAWN | {"rules": LogitRules(bias_token_ids=_ids(5, 6, 7), biases=np.array([1, 2, -100], np.float32))},
        _DRAWN | {"rules": LogitRules(bad_words=((17, 18), (20,), (30, 31, 32)))},
        _DRAWN | {"rules": LogitRules(min_tokens=_STEPS, masked_token_ids=_ids(0, 2))},
        _DRAWN | {"rules": LogitRules(allowed_token_ids=np.arange(100, 30_000, dtype=np.int64))},
        _DRAWN | {"num_logprobs": 2, "top_p": 0.9, "rules": LogitRules(repetition_penalty=1.2)},
    ]
    if grammar:
        rules = LogitRules(grammar=LLMatcher.grammar_from_json_schema(_SCHEMA), eos_token_ids=(2,))
        kinds = [_DRAWN | {"rules": rules}]
    return [Sampling(**kinds[row % len(kinds)]) for row in range(_ROWS)]


def _admit(sampling: list[Sampling]) -> StepPlan:
    random = np.random.default_rng(1)
    admissions = [
        Admission(
            sequence_id=row,
            row=row,
            num_prompt_tokens=_PROMPT,
            token_ids=random.integers(1000, 40_000, _PROMPT).astype(np.int32),
            blocks=np.arange(row * _BLOCKS_PER_ROW, (row + 1) * _BLOCKS_PER_ROW, dtype=np.int32),
            num_computed_tokens=0,
            sampling=sampling[row],
            seed=row,
            output_index=0,
        )
        for row in range(_ROWS)
    ]
    return plain_plan(0, range(_ROWS), [_PROMPT] * _ROWS, [1] * _ROWS, admissions)


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else _MODEL
    loaded = load_worker(WorkerConfig(model=model, num_gpu_blocks_override=_ROWS * _BLOCKS_PER_ROW, swap_space=0))
    limits = Limits(
        num_rows=_ROWS,
        num_device_blocks=_ROWS * _BLOCKS_PER_ROW,
        num_host_blocks=0,
        block_size=_BLOCK_SIZE,
        logits_width=loaded.capacity.logits_width,
        max_model_len=_PROMPT + _STEPS + 1,
        max_num_batched_tokens=_ROWS * _PROMPT,
    )
    contenders = {"greedy": [Sampling(**_PLAIN)] * _ROWS, "mixed": _mixed(False), "grammars": _mixed(True)}
    # What each computes means nothing here, so all may use the same blocks.
    tables = {name: loaded.runner.new_table(limits) for name in contenders}
    for name, sampling in contenders.items():
        loaded.runner.execute(tables[name], _admit(sampling))
    steps: dict[str, list[float]] = {name: [] for name in contenders}
    shares: dict[str, list[float]] = {name: [] for name in contenders}
    sampling_s = _count_seconds((Adjustments, "apply"), (NativeSampler, "__call__"))
    for step in range(1, _STEPS + 1):
        plan = plain_plan(step, range(_ROWS), [1] * _ROWS, [1] * _ROWS)
        for name in contenders if step % 2 else reversed(contenders):
            sampling_s.clear()
            begin = time.perf_counter()
            loaded.runner.execute(tables[name], plan)
            took = time.perf_counter() - begin
            steps[name].append(1e3 * took)
            shares[name].append(sum(sampling_s) / (took - sum(sampling_s)))
    median_ms = {name: round(statistics.median(values), 2) for name, values in steps.items()}
    share = {name: round(statistics.median(shares[name]), 4) for name in ("mixed", "grammars")}
    print(f"a step of {_ROWS} greedy rows: {median_ms['greedy']} ms")
    for name, value in share.items():
        print(
            f"sampling {_ROWS} rows, {name}: {100 * value:.1f} % of the rest of the step ({median_ms[name]} ms in all)"
        )
    _RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with _RESULTS.open("a") as file:
        record = {"model": Path(model).name, "rows": _ROWS, "median_ms": median_ms, "share": share}
        file.write(json.dumps(record | {"machine": machine()}) + "\n")


def _count_seconds(*methods: tuple[type, str]) -> list[float]:
    """Has these methods note the seconds of each of their calls."""
    seconds: list[float] = []

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*arguments, **keywords)
            finally:
                seconds.append(time.perf_counter() - begin)

        return call

    for owner, name in methods:
        setattr(owner, name, timed(getattr(owner, name)))
    return seconds


if __name__ == "__main__":
    main()
