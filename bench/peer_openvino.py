"""OpenVINO GenAI's continuous batching, in this process.

`python -m bench.peer_openvino MODEL_DIR` serves the commands of `measure.serve`. The graph is exported once, by
optimum-intel, with fp16 weights, which hold all but the smallest bf16 numbers; GenAI's own reader of GGUF files makes
one whose decoding steps take half as long again. It computes in the type that the CPU plugin prefers: fp32, or bf16
where the processor has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from bench.measure import Outcome, serve
from bench.workload import KV_CACHE_TOKENS, MAX_NUM_SEQS, THREADS, Request

_MAX_NUM_BATCHED_TOKENS = 512


class OpenVINO:
    """One pipeline with a prefix cache and one without, as that cannot be changed later."""

    processes: Mapping[str, int] = {"engine": os.getpid()}

    def __init__(self, model: str) -> None:
        self._model = _export(Path(model))
        self._pipelines: dict[bool, genai.ContinuousBatchingPipeline] = {}
        self._count = 0
        self.use(prefix_caching=True)
        core = openvino.Core()
        self.settings: Mapping[str, Any] = {
            "threads": THREADS,
            "weights": "fp16",
            "KV cache": "fp16",
            "computes in": "bf16" if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "fp32",
            "max_num_batched_tokens": _MAX_NUM_BATCHED_TOKENS,
            "transport": "none, called in its process",
        }

    def use(self, *, prefix_caching: bool) -> None:
        if prefix_caching not in self._pipelines:
            self._pipelines[prefix_caching] = self._load(prefix_caching)
        self._pipeline = self._pipelines[prefix_caching]

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Adds all requests, and steps until all have ended."""
        prompts = [openvino.Tensor(np.array([request.prompt], np.int64)) for request in requests]
        configs = [_greedy(request.num_output) for request in requests]
        token_ids: list[list[int]] = [[] for _ in requests]
        token_s: list[list[float]] = [[] for _ in requests]
        begin = time.perf_counter()
        handles = []
        for prompt, config in zip(prompts, configs, strict=True):
            handles.append(self._pipeline.add_request(self._count, prompt, config))
            self._count += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter() - begin
            for place, handle in enumerate(handles):
                if handle.can_read():
                    for output in handle.read().values():
                        token_ids[place] += output.generated_ids
                        token_s[place] += [now] * len(output.generated_ids)
        return Outcome(seconds=time.perf_counter() - begin, token_ids=token_ids, token_s=token_s)

    def _load(self, prefix_caching: bool) -> genai.ContinuousBatchingPipeline:
        config = genai.SchedulerConfig()
        config.num_kv_blocks = KV_CACHE_TOKENS // 32  # of the CPU plugin's block size
        config.max_num_seqs = MAX_NUM_SEQS
        config.max_num_batched_tokens = _MAX_NUM_BATCHED_TOKENS
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = prefix_caching
        return genai.ContinuousBatchingPipeline(self._model, config, "CPU", {"INFERENCE_NUM_THREADS": THREADS})


def _export(model: Path) -> Path:
    """The graph beside the model's directory, made if it is not there."""
    target = model.with_name(f"{model.name}-openvino")
    if not (target / "openvino_model.bin").exists():
        part = model.with_name(f"{target.name}.part")
        exporter = Path(sys.executable).with_name("optimum-cli")
        arguments = ["--task", "text-generation-with-past", "--weight-format", "fp16"]
        subprocess.run([exporter, "export", "openvino", "-m", model, *arguments, part], check=True)
        part.rename(target)
    return target


def _greedy(num_output: int) -> genai.GenerationConfig:
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = num_output
    config.ignore_eos = True
    config.do_sample = False
    return config


if __name__ == "__main__":
    serve(lambda: OpenVINO(sys.argv[1]), {name: version(name) for name in ("openvino", "openvino-genai")})
