"""transformers' continuous batching (`generate_batch`) on the same random model and requests."""

from __future__ import annotations

import importlib.util
import itertools
import statistics
from functools import partial
from typing import Any

import torch

from bench.gpu_check.llama import hf_config
from bench.gpu_check.requests import prompts
from bench.gpu_check.setting import Setting


def run(setting: Setting) -> None:
    """The part."""
    model = _make_model(setting)
    _generate(model, setting, setting.sizes.streams[0], 3)  # what is set up on first use; each call warms itself up
    sizes = setting.sizes
    setting.measure({sizes.requests(streams): partial(_measure, model, setting, streams) for streams in sizes.streams})


def _measure(model: Any, setting: Setting, streams: int) -> None:
    outputs = _generate(model, setting, streams, setting.sizes.output)
    _add(setting, streams, outputs)


def _make_model(setting: Setting) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    before = torch.get_default_dtype()
    torch.set_default_dtype(setting.dtype)
    try:
        with torch.device(setting.device):  # eight billion numbers are quickly drawn on a GPU alone
            model = LlamaForCausalLM(LlamaConfig(**hf_config(setting.sizes)))
    finally:
        torch.set_default_dtype(before)
    return model.eval()


def _generate(model: Any, setting: Setting, streams: int, num_output: int) -> list[Any]:
    """Outputs with a timestamp per token. Its sizes are its own choice, save on a CPU, where it would ask for a package
    that need not be there."""
    from transformers import GenerationConfig

    options = {}
    if setting.device.type == "cpu":
        from transformers import ContinuousBatchingConfig

        options["continuous_batching_config"] = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
    outputs = model.generate_batch(
        prompts(setting.sizes, streams),
        generation_config=GenerationConfig(
            max_new_tokens=num_output, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True
        ),
        record_timestamps=True,
        progress_bar=False,
        **options,
    )
    done = list(outputs.values())
    lengths = [len(output.generated_tokens) for output in done]
    if lengths != [num_output] * streams:
        raise RuntimeError(f"generate_batch gave {lengths} tokens for {streams} requests of {num_output}")
    return done


def _add(setting: Setting, streams: int, outputs: list[Any]) -> None:
    """Times from the moment that the first request was handed over, its own start and warm-up left out."""
    sizes = setting.sizes
    start = min(output.created_time for output in outputs)
    first = max(output.timestamps[0] for output in outputs)
    end = max(output.timestamps[-1] for output in outputs)
    # Every request's time from token to token, once all have their first: the decode steps.
    steps = [
        later - earlier
        for output in outputs
        for earlier, later in itertools.pairwise(output.timestamps)
        if earlier >= first
    ]
    name = sizes.requests(streams)
    has_flash = any(importlib.util.find_spec(package) for package in ("flash_attn", "flash_attn_interface"))
    note = "attention by flash-attn" if has_flash else "attention by SDPA: there is no flash-attn"
    if steps:
        setting.rows.add(f"{name}: decode step", 1e3 * statistics.median(steps), "ms", note=note)
    setting.rows.add(f"{name}: all", streams * sizes.output / (end - start), "tokens/s", note=note)
