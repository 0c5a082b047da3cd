"""A checkpoint whose next token depends on the last token only.

Attention and MLP are made to contribute exactly zero, embeddings are scaled unit vectors, so the final norm is the
same for every token and a column of lm_head is a row of the table. Tests lay lanes: a chain of ids that ends in EOS,
the bytes of an emoji one after another, a cycle that never ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.oracle.checkpoint import RMS_NORM_EPS, LlamaShape, log_softmax, write_checkpoint
from tests.oracle.tokenizer import EOS, VOCAB_SIZE

SHAPE = LlamaShape(hidden=VOCAB_SIZE)


def chain(*ids: int) -> dict[int, int]:
    """A lane: each id is followed by the next one. Raises ValueError where an id would need two successors."""
    table = dict(itertools.pairwise(ids))
    if len(table) != len(ids) - 1:
        raise ValueError(f"a lane cannot pass the same id twice: {ids}")
    return table


class LookupOracle:
    """The checkpoint of a table, and its closed form.

    table: successor of an id; ids without one are followed by EOS. margin: logit of the successor; all others are 0.
    """

    def __init__(self, table: Mapping[int, int], margin: float = 12.0) -> None:
        self.successors = np.full(VOCAB_SIZE, EOS)
        for token, successor in table.items():
            self.successors[token] = successor
        self.margin = margin

    def write(self, directory: Path) -> Path:
        """Writes the checkpoint and returns its directory."""
        tensors = SHAPE.random_tensors(np.random.default_rng(0))
        # The mean square of a row is 1, so the norm divides by the root of 1 + eps only.
        tensors["model.embed_tokens.weight"] = np.sqrt(SHAPE.hidden) * np.eye(VOCAB_SIZE)
        for layer in range(SHAPE.num_layers):
            tensors[f"model.layers.{layer}.self_attn.o_proj.weight"][:] = 0.0
            tensors[f"model.layers.{layer}.mlp.down_proj.weight"][:] = 0.0
        lm_head = tensors["lm_head.weight"]
        lm_head[:] = 0.0
        lm_head[self.successors, np.arange(VOCAB_SIZE)] = self.margin * np.sqrt((1 + RMS_NORM_EPS) / SHAPE.hidden)
        write_checkpoint(directory, SHAPE, tensors)
        return directory

    def expected_logprobs(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Log probabilities [VOCAB_SIZE] of the token after token_ids, in float64."""
        logits = np.zeros(VOCAB_SIZE)
        logits[self.successors[token_ids[-1]]] = self.margin
        return log_softmax(logits)

    def continuation(self, token_ids: Sequence[int], num_tokens: int) -> list[int]:
        """The greedy continuation of token_ids, EOS included, at most num_tokens long."""
        output: list[int] = []
        last = token_ids[-1]
        while len(output) < num_tokens and (not output or output[-1] != EOS):
            last = int(self.successors[last])
            output.append(last)
        return output
