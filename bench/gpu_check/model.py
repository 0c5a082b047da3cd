"""The worker's runner on a whole model, driven in this process: step time and tokens per second."""

from __future__ import annotations

import statistics
import time
from functools import partial

import numpy as np

from bench.gpu_check.llama import make_decoder, prompt_operations, step_bytes
from bench.gpu_check.requests import prompts
from bench.gpu_check.setting import Setting
from bench.gpu_check.sizes import Sizes
from worker.backend.triton_backend import TritonBackend
from worker.device_io import make_io
from worker.dummy_step import GREEDY
from worker.kv_cache import KVCache, KVCacheSpec
from worker.runner import Runner
from worker.sequence_table import SequenceTable
from worker.step import Admission, Limits, StepPlan, plain_plan


def run(setting: Setting) -> None:
    """The part."""
    sizes, model = setting.sizes, setting.sizes.model
    backend = TritonBackend(setting.dtype, setting.device)
    spec = KVCacheSpec(
        num_layers=model.layers,
        num_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        block_size=sizes.block_size,
        dtype=setting.dtype,
    )
    cache = KVCache(spec, max(sizes.streams) * _blocks_each(sizes), setting.device, copy_blocks=backend.copy_blocks)
    runner = Runner(make_decoder(setting, backend), cache, make_io(setting.device))
    setting.measure({sizes.requests(streams): partial(_measure, setting, runner, streams) for streams in sizes.streams})


def _measure(setting: Setting, runner: Runner, streams: int) -> None:
    _generate(runner, setting.sizes, streams)  # compiles what these shapes need, also where the context has grown
    prompts_s, steps_s = _generate(runner, setting.sizes, streams)
    _add(setting, streams, prompts_s, steps_s)


def _add(setting: Setting, streams: int, prompts_s: float, steps_s: list[float]) -> None:
    sizes, rows = setting.sizes, setting.rows
    name = sizes.requests(streams)
    num_bytes = step_bytes(sizes.model, streams, sizes.prompt + sizes.output // 2, setting.dtype.itemsize)
    floor_s = num_bytes / setting.copy_rate
    step_s = statistics.median(steps_s)
    rows.compare(f"{name}: decode step", 1e3 * step_s, "ms", "weights and KV over the copy's rate", 1e3 * floor_s)
    floor_s = streams * prompt_operations(sizes.model, sizes.prompt) / setting.matmul_rate
    rows.compare(f"{name}: prompts", 1e3 * prompts_s, "ms", "operations over the product's rate", 1e3 * floor_s)
    rows.add(f"{name}: all", streams * sizes.output / (prompts_s + sum(steps_s)), "tokens/s")


def _generate(runner: Runner, sizes: Sizes, streams: int) -> tuple[float, list[float]]:
    """All prompts under the token budget, then a decode step per token: seconds of the former together, and of each of
    the latter."""
    table = SequenceTable(
        Limits(
            num_rows=streams,
            num_device_blocks=streams * _blocks_each(sizes),
            num_host_blocks=0,
            block_size=sizes.block_size,
            logits_width=sizes.model.vocab,
            max_model_len=sizes.prompt + sizes.output,
            max_num_batched_tokens=sizes.budget,
        )
    )
    plans = _prefill_plans(sizes, streams)
    prompts_s = sum(_seconds(runner, table, plan) for plan in plans)
    rows = list(range(streams))
    steps = range(len(plans), len(plans) + sizes.output - 1)
    return prompts_s, [_seconds(runner, table, plain_plan(step, rows, [1] * streams, [1] * streams)) for step in steps]


def _prefill_plans(sizes: Sizes, streams: int) -> list[StepPlan]:
    """Prompts in order, in chunks where the budget ends within one."""
    left = [sizes.prompt] * streams
    admissions = tuple(_admission(sizes, row, prompt) for row, prompt in enumerate(prompts(sizes, streams)))
    plans: list[StepPlan] = []
    while any(left):
        budget, rows, num_tokens = sizes.budget, [], []
        for row in range(streams):
            chunk = min(left[row], budget)
            if chunk:
                rows.append(row)
                num_tokens.append(chunk)
                left[row] -= chunk
                budget -= chunk
        samples = [int(left[row] == 0) for row in rows]
        plans.append(plain_plan(len(plans), rows, num_tokens, samples, () if plans else admissions))
    return plans


def _admission(sizes: Sizes, row: int, prompt: list[int]) -> Admission:
    """With the blocks of all the tokens there will be, so that no later plan has to append any."""
    each = _blocks_each(sizes)
    return Admission(
        sequence_id=row,
        row=row,
        num_prompt_tokens=len(prompt),
        token_ids=np.array(prompt, np.int32),
        blocks=np.arange(row * each, (row + 1) * each, dtype=np.int32),
        num_computed_tokens=0,
        sampling=GREEDY,
        seed=row,
        output_index=0,
    )


def _seconds(runner: Runner, table: SequenceTable, plan: StepPlan) -> float:
    """A step waits for the device at its end, so the host's clock tells all of it, launches included."""
    start = time.perf_counter()
    runner.execute(table, plan)
    return time.perf_counter() - start


def _blocks_each(sizes: Sizes) -> int:
    return -(-(sizes.prompt + sizes.output) // sizes.block_size)
