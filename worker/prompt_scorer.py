"""Raw logprobs of prompt tokens, from the hidden states of a step.

A prompt of thousands of tokens would take gigabytes as logits, so the vocabulary projection is done a few rows at a
time, and what is kept of each is its token's logprob and the most likely tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.device_io import DeviceIO
from worker.step import IntColumn, PromptScores, no_ints

ROWS_AT_ONCE = 64
"""Hidden states that are projected at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """The prompt tokens that a step scores.

    num_scored [S]: of each scheduled row. places [P] int64: where in the step's tokens the one before each is.
    targets [P] int64: their ids. num_top [P] int32: most likely tokens to report in the place of each.
    """

    num_scored: IntColumn
    places: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    num_top: IntColumn


@torch.inference_mode()
def score(
    hidden: torch.Tensor, project: Callable[[torch.Tensor], torch.Tensor], scoring: Scoring, io: DeviceIO
) -> PromptScores:
    """hidden [P, C] of the tokens at `places`; project: rows of it [r, C] -> logits [r, V] float32."""
    most = int(scoring.num_top.max())
    targets = io.upload({"targets": scoring.targets})["targets"]
    pieces = [
        _score(project(some), some_targets, most)
        for some, some_targets in zip(hidden.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True)
    ]
    logprobs, top_tokens, top_logprobs = io.download([torch.cat(column) for column in zip(*pieces, strict=True)])
    wanted = np.arange(top_tokens.shape[1]) < scoring.num_top[:, None]
    return PromptScores(
        num_scored=scoring.num_scored,
        logprobs=logprobs,
        num_top=scoring.num_top if most else no_ints(),
        top_tokens=top_tokens[wanted],
        top_logprobs=top_logprobs[wanted],
    )


def _score(
    logits: torch.Tensor, targets: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprobs [r] of the targets; ids [r, num_top] int32 and logprobs [r, num_top] of the most likely tokens."""
    high = logits.amax(dim=1, keepdim=True)
    norm = high + (logits - high).exp().sum(dim=1, keepdim=True, dtype=torch.float64).log().float()
    values, ids = logits.topk(min(num_top, logits.shape[1]), dim=1)
    return (logits.gather(1, targets[:, None]) - norm)[:, 0], ids.int(), values - norm
