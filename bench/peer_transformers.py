"""Transformers' `generate` on the same requests: one static batch, greedy, exact lengths.

`python -m bench.peer_transformers MODEL_DIR` reads one JSON list of [count, prompt, output] shapes from standard input
and prints one JSON line of seconds per shape.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from transformers import LlamaForCausalLM

from bench.workload import streams


def main() -> None:
    torch.set_num_threads(2)
    model = LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    for count, num_prompt, num_output in json.loads(sys.stdin.readline()):
        requests = streams(count, num_prompt, num_output)
        ids = torch.tensor([request.prompt for request in requests])
        begin = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_output,
                min_new_tokens=num_output,
                do_sample=False,
                pad_token_id=0,
            )
        seconds = time.perf_counter() - begin
        assert output.shape == (count, num_prompt + num_output)
        print(json.dumps({"streams": count, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
