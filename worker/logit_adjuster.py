"""Changes a step's logits by the rules of its rows, between the model and the sampler.

The order, for a row's logits once its raw logprobs are safe:
    allowed ids, grammar    all other tokens are masked
    bad words               the last token of a bad word is masked where the output ends with those before it
    min_tokens              EOS and stop ids are masked until enough tokens are generated
    logit bias              is added
    penalties               l > 0 ? l / repetition : l * repetition for tokens of prompt or output (Keskar et al. 2019,
                            arXiv:1909.05858), then l - frequency * count - presence for tokens of the output
Nothing lifts a mask, so masks are written last: a tiny repetition penalty would make a masked token a likely one.

What the rows need is gathered in flat columns for the whole step, each applied by a few operations on the device that
the logits are on. Elements are changed one by one, so a row does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from worker.device_io import DeviceIO
from worker.row_rules import RowRules
from worker.sampler import MASKED, Changes
from worker.step import IdColumn, IntColumn, RowFlag

_LARGEST = 1e35
"""What penalties make of a logit is at most this, for logits must stay finite."""


class Adjustments:
    """What is to be done to the logits of a step's R rows that sample.

    places: which of them have rules, ascending; rules: those. asking: those of the places whose rows ask for logprobs.
    """

    def __init__(self, places: IdColumn, rules: Sequence[RowRules], asking: IdColumn) -> None:
        self._places = places
        self._rules = rules
        self._asking = asking
        self._flags: dict[int, RowFlag] = {}

    def flag(self, flags: IntColumn) -> None:
        """Writes into flags [R] why rows have no token, where that is the rules' doing. To be called after `apply`."""
        for place, flag in self._flags.items():
            flags[place] = flag

    @torch.inference_mode()
    def apply(self, logits: torch.Tensor, io: DeviceIO) -> Changes:
        """Changes logits [R, V] float32 in place, but for the masks of whole rows, which are left to the sampler; waits
        for the rows' grammars. A row that has no token left to draw gets a NaN, with which no sampler gives it one."""
        changes = Changes()
        if self._asking.size:
            rows = io.upload({"rows": self._asking})["rows"]
            changes = Changes(changed=self._asking, raw=logits.index_select(0, rows))
        self._add_biases(logits, io)
        self._penalise(logits, io)
        masked, kept = self._mask(logits, io)
        if self._flags:
            self._flag_dead(logits, io)
        return replace(changes, masked=masked, kept=kept)

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
        before = logits[place]
        repeated = torch.where(before > 0, before / columns["repetition"], before * columns["repetition"])
        after = (repeated - columns["subtracted"]).clamp_(-_LARGEST, _LARGEST)
        logits[place] = torch.where(torch.isfinite(before), after, before)

    def _mask(self, logits: torch.Tensor, io: DeviceIO) -> tuple[IdColumn, npt.NDArray[np.bool_]]:
        """Masks single tokens. -> rows of which more are masked [M], and what they keep [M, V]."""
        whole: list[tuple[int, npt.NDArray[np.bool_], IdColumn]] = []
        parts: list[tuple[int, IdColumn]] = []
        for place, row in self._each():
            ids = row.masked_ids()
            allowed, flag = row.allowed()
            if allowed is not None:
                whole.append((place, allowed, ids))
            elif ids.size:
                parts.append((place, ids))
                if ids.size >= logits.shape[1] == np.unique(ids).size:
                    flag = RowFlag.DEAD_END
            if flag is not RowFlag.OK:
                self._flags[place] = flag
        if parts:
            all_ids = [ids for _, ids in parts]
            columns = io.upload(
                {"rows": _places([place for place, _ in parts], all_ids), "ids": np.concatenate(all_ids)}
            )
            entries = columns["rows"], columns["ids"]
            logits[entries] = logits[entries] * 0.0 + MASKED  # what is not finite stays so
        kept = np.empty((len(whole), logits.shape[1]), np.bool_)
        for mask, (place, allowed, ids) in zip(kept, whole, strict=True):
            mask[:] = allowed
            mask[ids] = False
            if not mask.any():
                self._flags.setdefault(place, RowFlag.DEAD_END)
        return np.array([place for place, _, _ in whole], np.int64), kept

    def _flag_dead(self, logits: torch.Tensor, io: DeviceIO) -> None:
        """Takes the last token from rows that end here, but for those that the model has broken: that is what is to be
        told of them."""
        places = np.array(list(self._flags), np.int64)
        rows = io.upload({"rows": places})["rows"]
        (finite,) = io.download([torch.isfinite(logits.index_select(0, rows)).all(dim=1).int()])
        for place in places[finite == 0].tolist():
            del self._flags[place]
        logits[rows, 0] = torch.nan

    def _each(self) -> list[tuple[int, RowRules]]:
        return list(zip(self._places.tolist(), self._rules, strict=True))


def _places(places: Sequence[int], ids: Sequence[IdColumn]) -> IdColumn:
    """The row of each id."""
    return np.repeat(np.array(places, np.int64), [one.size for one in ids])
