"""A step made up at start: it shows what cannot run here before anybody is served, and how much memory a step takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.runner import Runner
from worker.sequence_table import SequenceTable
from worker.step import Admission, Limits, LogitRules, Sampling, StepPlan, plain_plan

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, num_logprobs=None)

HEAVIEST = Sampling(
    temperature=1.0,
    top_k=0,
    top_p=0.9,
    min_p=0.0,
    num_logprobs=20,
    rules=LogitRules(allowed_token_ids=np.arange(1, dtype=np.int64)),
)
"""What takes the sampler most memory: logits before and after a mask, sorted for the draw and for the logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DummyStep:
    """num_rows prompts of num_tokens tokens in all, as equal as can be, each row sampling; num_rows <= num_tokens.

    All rows share the same blocks, so that the KV cache need hold the longest row only; what they compute is of no
    meaning.
    """

    num_tokens: int
    num_rows: int
    sampling: Sampling = GREEDY

    def num_blocks(self, block_size: int) -> int:
        """Blocks that the KV cache must have."""
        return -(-self._longest // block_size)

    def run(self, runner: Runner, block_size: int, logits_width: int) -> None:
        """Executes it. logits_width: bound of the token ids."""
        limits = Limits(
            num_rows=self.num_rows,
            num_device_blocks=self.num_blocks(block_size),
            num_host_blocks=0,
            block_size=block_size,
            logits_width=logits_width,
            max_model_len=self._longest + 1,
            max_num_batched_tokens=self.num_tokens,
        )
        runner.execute(SequenceTable(limits), self._plan(block_size, logits_width))

    @property
    def _longest(self) -> int:
        return -(-self.num_tokens // self.num_rows)

    def _plan(self, block_size: int, logits_width: int) -> StepPlan:
        least, more = divmod(self.num_tokens, self.num_rows)
        num_tokens = [least + (row < more) for row in range(self.num_rows)]
        admissions = [
            Admission(
                sequence_id=row,
                row=row,
                num_prompt_tokens=length,
                token_ids=np.arange(length, dtype=np.int32) % logits_width,
                blocks=np.arange(-(-length // block_size), dtype=np.int32),
                num_computed_tokens=0,
                sampling=self.sampling,
                seed=row,
                output_index=0,
            )
            for row, length in enumerate(num_tokens)
        ]
        return plain_plan(0, range(self.num_rows), num_tokens, [1] * self.num_rows, admissions)
