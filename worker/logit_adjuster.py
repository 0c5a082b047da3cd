"""Changes a step's logits by the rules of its rows, between the model and the sampler.

The order, for a row's logits once its raw logprobs are safe:
    allowed ids, grammar    all other tokens are masked
    bad words               the last token of a bad word is masked where the output ends with those before it
    min_tokens              EOS and stop ids are masked until enough tokens are generated
    logit bias              is added
    penalties               l > 0 ? l / repetition : l * repetition for tokens of prompt or output (Keskar et al. 2019,
                            arXiv:1909.05858), then l - frequency * count - presence for tokens of the output
Nothing lifts a mask, so the masks are written last: a tiny repetition penalty would make a masked token a likely one.

What the rows need is gathered in flat columns for the whole step, each applied by a few operations on the device that
the logits are on. Elements are changed one by one, so a row does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from worker.device_io import DeviceIO
from worker.row_rules import RowRules
from worker.step import IdColumn, IntColumn, RowFlag

MASKED = -1e30
"""Logit of a token that must not be drawn: below any that a model gives, and finite, as all logits must be."""

_LARGEST = 1e35
"""What bias and penalties make of a logit is at most this."""


class Adjustments:
    """What is to be done to the logits of a step's R rows that sample.

    places: which of them have rules, ascending; rules: those. wants_logprobs: whether any of them asks for logprobs,
    which are those of the logits as the model gave them.
    """

    def __init__(self, places: IdColumn, rules: Sequence[RowRules], *, wants_logprobs: bool) -> None:
        self._places = places
        self._rules = rules
        self.wants_logprobs = wants_logprobs
        self._flags: dict[int, RowFlag] = {}

    def flag(self, flags: IntColumn) -> None:
        """Writes into flags [R] why rows have no token, where that is the rules' doing. To be called after `apply`."""
        for place, flag in self._flags.items():
            flags[place] = flag

    @torch.inference_mode()
    def apply(self, logits: torch.Tensor, io: DeviceIO) -> None:
        """Changes logits [R, V] float32 in place; waits for the rows' grammars. A row that has no token left to draw
        gets a NaN, with which no sampler gives it one; one that was not finite stays so."""
        rows = io.upload({"rows": self._places})["rows"]
        everyone = self._places.size == logits.shape[0]
        low, high = torch.aminmax(logits if everyone else logits[rows], dim=1)
        broken = ~(torch.isfinite(low) & torch.isfinite(high))
        self._add_biases(logits, io)
        self._penalise(logits, io)
        self._mask(logits, io)
        # One element that is not finite is enough; a mask may have hidden those that were there.
        logits[rows, 0] += torch.where(broken, torch.nan, 0.0)
        if self._flags:
            self._flag_dead(logits, io, broken)

    def _add_biases(self, logits: torch.Tensor, io: DeviceIO) -> None:
        biased = [(place, row.rules) for place, row in self._each() if row.rules.bias_token_ids.size]
        if not biased:
            return
        ids = [rules.bias_token_ids for _, rules in biased]
        columns = io.upload(
            {
                "rows": _places([place for place, _ in biased], ids),
                "ids": np.concatenate(ids),
                "biases": np.concatenate([rules.biases for _, rules in biased]),
            }
        )
        logits[columns["rows"], columns["ids"]] += columns["biases"]

    def _penalise(self, logits: torch.Tensor, io: DeviceIO) -> None:
        penalised = [(place, row.rules, *row.counts()) for place, row in self._each() if row.penalises]
        if not penalised:
            return
        places, rules, ids, counts = zip(*penalised, strict=True)
        sizes = [one.size for one in ids]
        repetition, frequency, presence = (
            np.repeat(np.array([getattr(one, f"{name}_penalty") for one in rules], np.float32), sizes)
            for name in ("repetition", "frequency", "presence")
        )
        count = np.concatenate(counts)
        columns = io.upload(
            {
                "rows": _places(places, ids),
                "ids": np.concatenate(ids),
                "repetition": repetition,
                "subtracted": frequency * count + presence * (count > 0),
            }
        )
        place = columns["rows"], columns["ids"]
        repeated = logits[place]
        repeated = torch.where(repeated > 0, repeated / columns["repetition"], repeated * columns["repetition"])
        logits[place] = (repeated - columns["subtracted"]).clamp_(-_LARGEST, _LARGEST)

    def _mask(self, logits: torch.Tensor, io: DeviceIO) -> None:
        width = logits.shape[1]
        whole: list[tuple[int, npt.NDArray[np.bool_]]] = []
        parts: list[tuple[int, IdColumn]] = []
        for place, row in self._each():
            ids = row.masked_ids()
            allowed, flag = row.allowed()
            if allowed is not None:
                blocked = ~allowed
                blocked[ids] = True
                whole.append((place, blocked))
                dead = bool(blocked.all())
            else:
                parts.append((place, ids))
                dead = ids.size >= width and np.unique(ids).size == width
            if flag is not RowFlag.OK or dead:
                self._flags[place] = flag if flag is not RowFlag.OK else RowFlag.DEAD_END
        if whole:
            columns = io.upload(
                {"rows": np.array([place for place, _ in whole]), "blocked": np.stack([mask for _, mask in whole])}
            )
            if len(whole) == logits.shape[0]:
                logits.masked_fill_(columns["blocked"], MASKED)
            else:
                logits[columns["rows"]] = logits[columns["rows"]].masked_fill_(columns["blocked"], MASKED)
        all_ids = [ids for _, ids in parts]
        if any(ids.size for ids in all_ids):
            columns = io.upload(
                {"rows": _places([place for place, _ in parts], all_ids), "ids": np.concatenate(all_ids)}
            )
            logits[columns["rows"], columns["ids"]] = MASKED

    def _flag_dead(self, logits: torch.Tensor, io: DeviceIO, broken: torch.Tensor) -> None:
        """Takes the last token from rows that end here, but for those that the model has broken: that is what is to be
        told of them."""
        (is_broken,) = io.download([broken.int()])
        for place in self._places[is_broken > 0].tolist():
            self._flags.pop(place, None)
        if self._flags:
            rows = io.upload({"rows": np.array(list(self._flags), np.int64)})["rows"]
            logits[rows, 0] = torch.nan

    def _each(self) -> list[tuple[int, RowRules]]:
        return list(zip(self._places.tolist(), self._rules, strict=True))


def _places(places: Sequence[int], ids: Sequence[IdColumn]) -> IdColumn:
    """The row of each id."""
    return np.repeat(np.array(places, np.int64), [one.size for one in ids])
