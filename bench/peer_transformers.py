"""Transformers' `generate` in this process: one static batch, greedy; for requests of equal lengths only.

`python -m bench.peer_transformers MODEL_DIR` serves the commands of `measure.serve`; with `--continuous` after the
directory it runs transformers' continuous batching instead, on requests of any lengths.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

from bench.machine import torch_dtype
from bench.measure import Engine, Outcome, serve
from bench.workload import KV_CACHE_TOKENS, MAX_NUM_SEQS, THREADS, Request

_PAGE_SIZE = 32


class Static:
    """`generate` on a batch."""

    processes: Mapping[str, int] = {"engine": os.getpid()}
    settings: Mapping[str, Any] = {
        "threads": THREADS,
        "dtype": torch_dtype(),
        "batching": "static",
        "transport": "none, called in its process",
    }

    def __init__(self, model: str) -> None:
        self._model = _load(model)

    def use(self, *, prefix_caching: bool) -> None:
        """It has no prefix cache."""

    def run(self, requests: Sequence[Request]) -> Outcome:
        ids = torch.tensor([request.prompt for request in requests])
        num_output = requests[0].num_output
        clock = _Clock() if len(requests) == 1 else None
        begin = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_output,
                min_new_tokens=num_output,
                do_sample=False,
                pad_token_id=0,
                streamer=clock,
            )
        return Outcome(
            seconds=time.perf_counter() - begin,
            token_ids=output[:, ids.shape[1] :].tolist(),
            token_s=[[now - begin for now in clock.times]] if clock else [],
        )


class Continuous:
    """Its continuous batching, which runs in a thread of its own."""

    processes = Static.processes
    settings = dict(Static.settings) | {"batching": "continuous"}

    def __init__(self, model: str) -> None:
        self._model = _load(model)
        self._prefix_caching = True

    def use(self, *, prefix_caching: bool) -> None:
        self._prefix_caching = prefix_caching

    def run(self, requests: Sequence[Request]) -> Outcome:
        manager = self._model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            ContinuousBatchingConfig(
                page_size=_PAGE_SIZE,
                num_blocks=KV_CACHE_TOKENS // _PAGE_SIZE,
                max_batch_tokens=512,
                max_requests_per_batch=MAX_NUM_SEQS,
                allow_block_sharing=self._prefix_caching,
            ),
        )
        manager.start()
        begin = time.perf_counter()
        names = [
            manager.add_request(list(request.prompt), max_new_tokens=request.num_output, record_timestamps=True)
            for request in requests
        ]
        results: dict[str, Any] = {}
        for result in manager:
            if result.is_finished():
                results[result.request_id] = result
            if len(results) == len(names):
                break
        seconds = time.perf_counter() - begin
        manager.stop(block=True)
        return Outcome(seconds=seconds, token_ids=[results[name].generated_tokens for name in names])


class _Clock(BaseStreamer):
    """When each token came; the prompt comes first and does not count."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            self.times.append(time.perf_counter())
        self._prompt = False

    def end(self) -> None:
        """Nothing is held back."""


def _load(model: str) -> Any:
    torch.set_num_threads(THREADS)
    loaded = LlamaForCausalLM.from_pretrained(model, dtype=torch_dtype()).eval()
    loaded.generation_config.eos_token_id = None
    return loaded


def _start() -> Engine:
    return Continuous(sys.argv[1]) if "--continuous" in sys.argv else Static(sys.argv[1])


if __name__ == "__main__":
    serve(_start, {name: version(name) for name in ("transformers", "torch")})
