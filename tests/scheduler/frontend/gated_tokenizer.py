"""A tokenizer that stops in the middle of its work until it is told to go on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

from scheduler.frontend.directory_tokenizer import read_directory
from scheduler.frontend.tokenizer import Tokenizer

_CAP_S = 60


class Gate:
    """A pre-tokenizer that changes nothing. texts: what the tokenizers library gave it, in the order of its coming."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._open = threading.Event()

    def open(self) -> None:
        """Lets go on what waits, and whatever comes from now on."""
        self._open.set()

    def pre_tokenize(self, text: Any) -> None:
        self.texts.append(str(text.get_splits()[0][0]))
        assert self._open.wait(_CAP_S)


def gated(model: Path) -> tuple[Tokenizer, Gate]:
    """The tokenizer of a byte-level model, with a gate in it."""
    parts, gate = read_directory(model), Gate()
    assert parts.backend is not None
    parts.backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.PreTokenizer.custom(gate), parts.backend.pre_tokenizer]
    )
    return Tokenizer(parts), gate
