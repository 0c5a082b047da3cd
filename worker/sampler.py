"""Draws the next token of each row from its logits.

Each row is a function of its own logits, sampling parameters, seed and output index alone, bit for bit: nothing here
reduces across rows or picks an order of summation by batch size. Rows that draw, or ask for logprobs, are handled one
by one, with draws only for what top-k and top-p left of the vocabulary; all other rows cost their share of one argmax.

The order, for a row with logits l (float32):
    raw logprobs    l - max(l) - log(sum(exp(l - max(l)))), before anything else
    rules           what `worker.logit_adjuster` makes of l, for rows that have any
    temperature     x = (l - max(l)) / temperature; temperature 0 takes argmax(l)
    min_p           keep tokens with exp(x) >= min_p, the most likely token having exp(x) = 1
    top_k           keep the k largest
    top_p           keep the smallest set of largest whose exp(x) sum to at least top_p of the sum over what is left
    draw            argmax(x + gumbel(seed, output index, token)), see `worker.philox`
Among equal values the lowest token id wins everywhere. A row with a logit that is NaN or infinite has no token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from worker.philox import gumbel_of_tokens, gumbel_of_vocabulary
from worker.step import FloatColumn, IdColumn, IntColumn, no_ids

_Row = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int64]

SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)
_NUCLEUS_FLOORS = (1e-2, 1e-4, 1e-6)
"""Weights, relative to the most likely token's, down to which a nucleus is looked for before all are sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingColumns:
    """Parameters of R rows that sample: temperature, top_p, min_p float64 [R]; top_k int32 [R];
    num_logprobs int32 [R], -1 for none; seeds uint64 [R]; output_index int64 [R].

    The same columns may serve step after step, output_index then being counted up in place and nothing else changing.
    """

    temperature: npt.NDArray[np.float64]
    top_k: IntColumn
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]
    num_logprobs: IntColumn
    seeds: npt.NDArray[np.uint64]
    output_index: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """finite [R] says which rows have a token; tokens [R], 0 where there is none.

    The other columns cover the rows with a token only. logprobs: one each, 0 where not asked for; empty if no row
    asked. num_top: entries in top_tokens and top_logprobs, most likely first; empty if no row asked.
    """

    finite: npt.NDArray[np.bool_]
    tokens: IntColumn
    logprobs: FloatColumn
    num_top: IntColumn
    top_tokens: IntColumn
    top_logprobs: FloatColumn


MASKED = -1e30
"""Logit of a token that must not be drawn: below any that a model gives, and finite, as all logits must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a sampler must know of logits [R, V] that were changed since the model gave them.

    masked [M]: rows of which some tokens are not to be drawn; kept [M, V]: the others.
    changed [K]: rows whose logits were others; raw [K, V]: those, which logprobs are of.
    """

    masked: IdColumn = field(default_factory=no_ids)
    kept: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty((0, 0), np.bool_))
    changed: IdColumn = field(default_factory=no_ids)
    raw: torch.Tensor = field(default_factory=lambda: torch.empty((0, 0)))


NO_CHANGES = Changes()


def sample(logits: torch.Tensor, columns: SamplingColumns, changes: Changes = NO_CHANGES) -> Sampled:
    """logits [R, V] of any float type on any device -> a token per row. Rows with masks are written into."""
    logits = logits.float()
    if changes.masked.size:
        mask_rows(logits, torch.from_numpy(changes.masked), torch.from_numpy(changes.kept))
    finite = _finite_rows(logits)
    tokens = np.where(finite, _argmax(logits), 0).astype(np.int32)
    for i in np.flatnonzero(finite & (columns.temperature > 0)):
        tokens[i] = _draw(
            logits[i].numpy(force=True),
            temperature=float(columns.temperature[i]),
            min_p=float(columns.min_p[i]),
            top_k=int(columns.top_k[i]),
            top_p=float(columns.top_p[i]),
            seed=int(columns.seeds[i]),
            output_index=int(columns.output_index[i]),
        )
    raw = {row: changes.raw[place] for place, row in enumerate(changes.changed.tolist())}
    logprobs, num_top, top_tokens, top_logprobs = _logprobs(logits, raw, tokens, finite, columns.num_logprobs)
    return Sampled(
        finite=finite,
        tokens=tokens,
        logprobs=logprobs,
        num_top=num_top,
        top_tokens=top_tokens,
        top_logprobs=top_logprobs,
    )


@torch.inference_mode()
def mask_rows(logits: torch.Tensor, rows: torch.Tensor, kept: torch.Tensor) -> None:
    """Masks the tokens of logits [R, V] that rows [M] do not keep, kept [M, V] booleans, all on one device. A row with
    a logit that is not finite keeps one, also if it is among those that are masked."""
    some = logits.index_select(0, rows)
    finite = torch.isfinite(some.amax(dim=1)) & torch.isfinite(some.amin(dim=1))
    some = torch.where(kept, some, MASKED)
    some[:, 0] += torch.where(finite, 0.0, torch.nan)
    logits.index_copy_(0, rows, some)


def _finite_rows(logits: torch.Tensor) -> npt.NDArray[np.bool_]:
    # A sum is the cheapest look at every element. It is finite only if all are; the converse fails on overflow.
    finite: npt.NDArray[np.bool_] = torch.isfinite(logits.sum(dim=1)).numpy(force=True)
    for i in np.flatnonzero(~finite):
        finite[i] = bool(torch.isfinite(logits[i]).all())
    return finite


def _argmax(logits: torch.Tensor) -> _Ids:
    # numpy's argmax is several times faster than torch's on a CPU; both take the first of equal values.
    on_cpu = logits.device.type == "cpu"
    ids: _Ids = logits.numpy().argmax(axis=1) if on_cpu else logits.argmax(dim=1).numpy(force=True)
    return ids


def _draw(
    logits: _Row, *, temperature: float, min_p: float, top_k: int, top_p: float, seed: int, output_index: int
) -> int:
    """The token drawn from logits [V]."""
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the most likely tokens to -inf, as it should
        x = (logits - logits.max()) / np.float32(max(temperature, SMALLEST_TEMPERATURE))
    ids: _Ids | None = None  # ascending; None is the whole vocabulary
    if min_p > 0:
        ids = np.flatnonzero(np.exp(x) >= np.float32(min_p))
    if 0 < top_k < (x.size if ids is None else ids.size):
        ids = _largest(logits, top_k) if ids is None else ids[_largest(logits[ids], top_k)]
    if top_p < 1:
        ids = _nucleus(x, top_p) if ids is None else ids[_nucleus(x[ids], top_p)]
    if ids is None:
        return int(np.argmax(x + gumbel_of_vocabulary(x.size, seed, output_index)))
    return int(ids[np.argmax(x[ids] + gumbel_of_tokens(ids, seed, output_index))])


def _largest(values: _Row, k: int) -> _Ids:
    """Indices of the k largest values, ascending; 0 < k <= size. Of equal values the first ones."""
    return _at_least(values, np.partition(values, values.size - k)[values.size - k], k)


def _nucleus(x: _Row, top_p: float) -> _Ids:
    """Indices, ascending, of the smallest set of largest exp(x) whose sum is at least top_p of the whole sum."""
    weights = np.exp(x)
    target = top_p * weights.sum(dtype=np.float64)
    candidates = weights
    for floor in _NUCLEUS_FLOORS:
        likely = weights[weights >= weights.max() * np.float32(floor)]
        if likely.sum(dtype=np.float64) > target:
            candidates = likely
            break
    descending = np.sort(candidates)[::-1]  # values only: several times faster than sorting ids with them
    size = min(int(np.searchsorted(np.cumsum(descending, dtype=np.float64), target)) + 1, descending.size)
    return _at_least(weights, descending[size - 1], size)


def _at_least(values: _Row, threshold: np.float32, k: int) -> _Ids:
    """Indices, ascending, of the values above the threshold and of the first ones equal to it, k in all."""
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: k - above.size]
    return np.sort(np.concatenate([above, equal]))


def _logprobs(
    logits: torch.Tensor,
    raw_rows: Mapping[int, torch.Tensor],
    tokens: IntColumn,
    finite: npt.NDArray[np.bool_],
    num_logprobs: IntColumn,
) -> tuple[FloatColumn, IntColumn, IntColumn, FloatColumn]:
    """Columns logprobs, num_top, top_tokens, top_logprobs over the finite rows. raw_rows: logits [V] of rows for which
    they are not those in `logits`."""
    empty = np.empty(0, np.float32), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32)
    asked = num_logprobs[finite]
    if not (asked >= 0).any():
        return empty
    logprobs = np.zeros(asked.size, np.float32)
    ids, values = [empty[2]], [empty[3]]
    for place, i in enumerate(np.flatnonzero(finite)):
        if num_logprobs[i] < 0:
            continue
        row = raw_rows.get(int(i), logits[i]).numpy(force=True)
        raw = row - row.max()
        raw = raw - np.float32(np.log(np.exp(raw).sum(dtype=np.float64)))
        logprobs[place] = raw[tokens[i]]
        if num_logprobs[i] > 0:
            largest = _largest(row, int(num_logprobs[i]))
            largest = largest[np.argsort(-row[largest], kind="stable")]
            ids.append(largest.astype(np.int32))
            values.append(raw[largest])
    num_top = np.maximum(asked, 0) if len(ids) > 1 else empty[1]
    return logprobs, num_top, np.concatenate(ids), np.concatenate(values)
