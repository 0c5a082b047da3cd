"""Why a model cannot be served. Messages are for the person who started the worker: one line, what and what instead."""

from __future__ import annotations

from collections.abc import Iterable


class ModelError(Exception):
    """A model cannot be loaded."""


class ModelNotFoundError(ModelError):
    """There is no such directory, file or Hub model, or it lacks a file that serving needs."""


class UnsupportedModelError(ModelError):
    """The model asks for something that is not served."""

    def __init__(self, what: str, supported: Iterable[str]) -> None:
        super().__init__(f"{what} is not supported; supported: {', '.join(supported)}")


class ModelConfigError(ModelError):
    """The configuration is broken or contradicts itself."""


class WeightsError(ModelError):
    """The tensors are not those that the configuration describes."""
