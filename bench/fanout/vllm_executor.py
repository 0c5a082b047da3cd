"""An executor of vLLM's that computes nothing: a request's token is the word of the step.

Runs in vLLM's engine process, from `--distributed-executor-backend bench.fanout.vllm_executor.PacedExecutor`; its
scheduler, engine core and front end are vLLM's own. Settings come in the environment variable FANOUT, as JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

from bench.fanout.pace import Pace
from bench.fanout.words import words

_NUM_HEADS, _HEAD_SIZE = 1, 64


class PacedExecutor(Executor):
    """Answers a step when it is due."""

    def _init_executor(self) -> None:
        settings = json.loads(os.environ["FANOUT"])
        self._num_blocks = settings["num_blocks"]
        log = Path(settings["pace_log"]).open("w")  # noqa: SIM115 - for as long as the process lives
        self._pace = Pace(settings["steps_per_second"], log)
        self._token_ids, _ = words(Path(settings["model"]))
        self._step = 0

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> list[Any]:
        """What the engine asks its workers at start and stop."""
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=_NUM_HEADS,
            head_size=_HEAD_SIZE,
            dtype=torch.float32,
        )
        answers = {
            "get_kv_cache_spec": {"layer": spec},
            "get_supported_kv_cache_layouts": ["NHD"],
            "determine_available_memory": self._num_blocks * spec.page_size_bytes,
            "compile_or_warm_up_model": CompilationTimes(0.0, 0.0),
            "get_supported_tasks": ("generate",),
            "supports_draft_weight_updates": False,
        }
        return [answers.get(str(method))]

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """A token for each request. Prompts are of one token, so that no step is without one for any."""
        ids = list(scheduler_output.num_scheduled_tokens)
        output = ModelRunnerOutput(req_ids=ids, req_id_to_index={name: place for place, name in enumerate(ids)})
        if ids:
            token_id = self._token_ids[self._step % len(self._token_ids)]
            output.sampled_token_ids = [[token_id] for _ in ids]
            time.sleep(self._pace.wait_s(self._step, time.monotonic()))
            self._pace.done(self._step, time.monotonic())
            self._step += 1
        if not non_block:
            return output
        future: Future[ModelRunnerOutput] = Future()
        future.set_result(output)
        return future

    def check_health(self) -> None:
        """It is always well."""

    def shutdown(self) -> None:
        """It holds nothing."""
