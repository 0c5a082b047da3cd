"""A checkpoint whose attention is exactly uniform, so that every logprob is a checksum of the KV cache.

Queries are zero, hence all scores are equal and attention is the mean of the visible values, whatever keys and
positions are. A value is a random code of its token, hence the logits are a function of the last token and of the
multiset of tokens that attention read. At contexts of 100 to 300 tokens, a block of 16 that is lost, read twice, or
another sequence's, changes logprobs of the likely tokens by 0.1 to 5.

The hidden state has two halves: embeddings live in the first, attention writes into the second. The first layer's
output projection is zero, so its values (another code) must not matter: reading the wrong layer's cache shows as well.
Keys are random: writing keys in place of values shows as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.oracle.checkpoint import LlamaShape, log_softmax, rms_norm, write_checkpoint
from tests.oracle.tokenizer import VOCAB_SIZE

SHAPE = LlamaShape(hidden=256)
_HALF = SHAPE.hidden // 2
_GROUP = SHAPE.num_heads // SHAPE.num_kv_heads

# Balances two wishes: a context of 300 tokens must still feel one block, one of 10 must not saturate the softmax.
ATTENTION_GAIN = 8.0
LOGIT_GAIN = 0.25


class UniformOracle:
    """The checkpoint of a seed, and its closed form."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        tensors = SHAPE.random_tensors(rng)
        embeddings = np.zeros((VOCAB_SIZE, SHAPE.hidden))
        embeddings[:, :_HALF] = rng.choice([-1.0, 1.0], size=(VOCAB_SIZE, _HALF))
        tensors["model.embed_tokens.weight"] = embeddings
        tensors["lm_head.weight"] *= LOGIT_GAIN
        for layer in range(SHAPE.num_layers):
            tensors[f"model.layers.{layer}.self_attn.q_proj.weight"][:] = 0.0
            tensors[f"model.layers.{layer}.self_attn.o_proj.weight"][:] = 0.0
            tensors[f"model.layers.{layer}.mlp.down_proj.weight"][:] = 0.0
        last = f"model.layers.{SHAPE.num_layers - 1}.self_attn"
        # Head outputs [num_heads * head_dim = _HALF] go to the second half of the hidden state.
        tensors[f"{last}.o_proj.weight"][_HALF:, :] = ATTENTION_GAIN * np.eye(_HALF)
        # The closed form starts from what float32 keeps of the weights.
        self._tensors = {name: tensor.astype(np.float32).astype(np.float64) for name, tensor in tensors.items()}
        self._embeddings = self._tensors["model.embed_tokens.weight"]
        self._lm_head = self._tensors["lm_head.weight"]
        values = rms_norm(self._embeddings) @ self._tensors[f"{last}.v_proj.weight"].T
        # What attention adds for each token id [V, hidden / 2]: query head h reads key/value head h // _GROUP.
        by_head = values.reshape(VOCAB_SIZE, SHAPE.num_kv_heads, SHAPE.head_dim).repeat(_GROUP, axis=1)
        self._codes = ATTENTION_GAIN * by_head.reshape(VOCAB_SIZE, _HALF)

    def write(self, directory: Path) -> Path:
        """Writes the checkpoint and returns its directory."""
        write_checkpoint(directory, SHAPE, self._tensors)
        return directory

    def expected_logprobs(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Log probabilities [VOCAB_SIZE] of the token after token_ids, in float64."""
        return self.logprobs_of_read(token_ids[-1], token_ids)

    def logprobs_of_read(self, last_token: int, read: Sequence[int]) -> NDArray[np.float64]:
        """What a model computes after last_token whose attention read the values of the tokens `read`, in any order.
        An intact KV cache makes it read all tokens so far, the last one included, each once."""
        hidden = self._embeddings[last_token].copy()
        hidden[_HALF:] = self._codes[np.asarray(read)].mean(axis=0)
        return log_softmax(rms_norm(hidden) @ self._lm_head.T)
