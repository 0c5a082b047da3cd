"""The sampler of a GPU: the steps of `worker.sampler` in batched torch on the device, and one download of the outcome.

Rows draw from the same random words as on a CPU and follow the same order, so that a token differs between the two only
where rounding decides: an `exp` or `log` that ends in another bit, sums in another order, or, within a nucleus, two
tokens of different logits whose probabilities are equal as float32 numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from worker.device_io import DeviceIO, HostIO
from worker.device_philox import gumbel
from worker.philox import MASK
from worker.sampler import NO_CHANGES, SMALLEST_TEMPERATURE, Changes, Sampled, SamplingColumns, mask_rows, sample
from worker.step import no_ints


class Sampler(Protocol):
    """A sampler as `worker.sampler.sample` defines it, for logits on its device."""

    def __call__(self, logits: torch.Tensor, columns: SamplingColumns, changes: Changes = NO_CHANGES) -> Sampled:
        """logits [R, V] -> a token per row. Rows with masks are written into."""
        ...


_ROWS_AT_ONCE = 64
"""Draws take some thirty bytes per row and token of the vocabulary while they run; this bounds them."""


def make_sampler(io: DeviceIO) -> Sampler:
    """The sampler that fits the device."""
    return sample if isinstance(io, HostIO) else DeviceSampler(io)


class DeviceSampler:
    """Satisfies Sampler for logits on the device."""

    def __init__(self, io: DeviceIO) -> None:
        self._io = io

    def __call__(self, logits: torch.Tensor, columns: SamplingColumns, changes: Changes = NO_CHANGES) -> Sampled:
        """logits [R, V] of any float type -> a token per row. Waits for the device once."""
        if logits.shape[0] == 0:
            return _sampled(no_ints(), no_ints(), columns.num_logprobs, None)
        logits = logits.float()
        if changes.masked.size:
            uploaded = self._io.upload({"rows": changes.masked, "kept": changes.kept})
            mask_rows(logits, uploaded["rows"], uploaded["kept"])
        low, high = torch.aminmax(logits, dim=1)
        finite = torch.isfinite(low) & torch.isfinite(high)  # both are NaN where a logit is
        tokens = logits.argmax(dim=1)
        for rows, parameters in self._drawing(columns, logits.shape[1]):
            tokens[rows] = _draw(logits[rows], high[rows], parameters)
        tokens = torch.where(finite, tokens, 0)
        outcome = [tokens.int(), finite.int()]
        asking = np.flatnonzero(columns.num_logprobs >= 0)
        if asking.size:
            rows = self._io.upload({"rows": asking})["rows"]
            wanted, of_wanted = logits[rows], high[rows]
            if changes.changed.size:
                # Rows that were changed and ask, by their place among those that ask.
                places = self._io.upload({"places": np.searchsorted(asking, changes.changed)})["places"]
                wanted.index_copy_(0, places, changes.raw)
                of_wanted = wanted.amax(dim=1)
            outcome += _logprobs(wanted, of_wanted, tokens[rows], int(columns.num_logprobs.max()))
        arrived = self._io.download(outcome)
        logprobs = (asking, *arrived[2:]) if asking.size else None
        return _sampled(arrived[0], arrived[1], columns.num_logprobs, logprobs)

    def _drawing(self, columns: SamplingColumns, width: int) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
        """Rows that draw and their parameters, those that truncate the vocabulary apart from those that do not."""
        draws = columns.temperature > 0
        cut = (columns.top_k > 0) & (columns.top_k < width) | (columns.top_p < 1) | (columns.min_p > 0)
        for truncates in (False, True):
            rows = np.flatnonzero(draws & (cut == truncates))
            for start in range(0, rows.size, _ROWS_AT_ONCE):
                some = rows[start : start + _ROWS_AT_ONCE]
                uploaded = self._io.upload(_parameters(columns, some, width, truncates))
                yield uploaded.pop("rows"), uploaded


def _parameters(
    columns: SamplingColumns, rows: npt.NDArray[np.int64], width: int, truncates: bool
) -> dict[str, npt.NDArray[np.generic]]:
    """rows [r], and by row what a draw needs."""
    seeds, top_k = columns.seeds[rows], columns.top_k[rows]
    always: dict[str, npt.NDArray[np.generic]] = {
        "rows": rows,
        "temperature": np.maximum(columns.temperature[rows], SMALLEST_TEMPERATURE).astype(np.float32),
        "seeds_low": (seeds & np.uint64(MASK)).astype(np.int64),
        "seeds_high": (seeds >> np.uint64(32)).astype(np.int64),
        "output_index": columns.output_index[rows] & MASK,
    }
    if not truncates:
        return always
    return always | {
        "top_k": np.where(top_k > 0, top_k, width),
        "top_p": columns.top_p[rows],
        "min_p": columns.min_p[rows].astype(np.float32),
    }


def _draw(logits: torch.Tensor, high: torch.Tensor, parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    """Tokens [r] int64 drawn from logits [r, V], whose largest of each row is high [r]."""
    x = (logits - high[:, None]) / parameters["temperature"][:, None]
    noise = gumbel(x.shape[1], parameters["seeds_low"], parameters["seeds_high"], parameters["output_index"])
    if "top_k" in parameters:
        x = x.masked_fill(~_kept(x, logits, parameters), -torch.inf)
    return x.add_(noise).argmax(dim=1)


def _kept(x: torch.Tensor, logits: torch.Tensor, parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    """[r, V] booleans: what min_p, top_k and top_p, in this order, leave. Each leaves the first so many tokens in order
    of falling logit, the lower id first among equals."""
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices
    ranks = torch.arange(order.shape[1], device=order.device)[None, :]
    weights = x.gather(1, order).exp_()
    kept = (ranks < parameters["top_k"][:, None]) & (weights >= parameters["min_p"][:, None])
    reached = weights.masked_fill_(~kept, 0.0).cumsum(dim=1, dtype=torch.float64)
    top_p = parameters["top_p"][:, None]
    # A token is in the nucleus if those before it do not reach the target.
    before = torch.cat((reached.new_zeros(reached.shape[0], 1), reached[:, :-1]), dim=1)
    kept &= (before < top_p * reached[:, -1:]) | (top_p >= 1)
    return torch.zeros_like(kept).scatter_(1, order, kept)


def _logprobs(
    logits: torch.Tensor, high: torch.Tensor, tokens: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Raw logprobs [r] of the tokens, and the num_top most likely: ids [r, num_top] int32, logprobs [r, num_top]."""
    raw = logits - high[:, None]
    raw = raw - raw.exp().sum(dim=1, keepdim=True, dtype=torch.float64).log().float()
    num_top = min(num_top, raw.shape[1])
    top = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :num_top] if num_top else raw[:, :0].long()
    return raw.gather(1, tokens[:, None])[:, 0], top.int(), raw.gather(1, top)


def _sampled(
    tokens: npt.NDArray[np.int32],
    finite: npt.NDArray[np.int32],
    num_logprobs: npt.NDArray[np.int32],
    logprobs: tuple[npt.NDArray[np.generic], ...] | None,
) -> Sampled:
    """logprobs: rows that asked, then the three columns of `_logprobs` over them; None if no row asked."""
    has_token = finite.astype(np.bool_)
    nothing = np.empty(0, np.float32)
    if logprobs is None or not (num_logprobs[has_token] >= 0).any():
        return Sampled(
            finite=has_token,
            tokens=tokens,
            logprobs=nothing,
            num_top=no_ints(),
            top_tokens=no_ints(),
            top_logprobs=nothing,
        )
    asking, of_tokens, top_tokens, top_logprobs = logprobs
    of_rows = np.zeros(tokens.size, np.float32)
    of_rows[asking] = of_tokens
    num_top = np.maximum(num_logprobs, 0)
    wanted = (np.arange(top_tokens.shape[1]) < num_top[asking, None]) & has_token[asking, None]
    any_top = bool(wanted.any())
    return Sampled(
        finite=has_token,
        tokens=tokens,
        logprobs=of_rows[has_token],
        num_top=num_top[has_token] if any_top else no_ints(),
        top_tokens=top_tokens[wanted].astype(np.int32),
        top_logprobs=top_logprobs[wanted].astype(np.float32),
    )
