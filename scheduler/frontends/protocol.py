"""What the engine's process and a front end say to each other besides the values of `scheduler.messages`."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.config import SchedulerConfig
from scheduler.frontend.model_info import ModelInfo
from scheduler.messages import Message, StepUpdate
from scheduler.metrics.request_metrics import RequestMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """The first message: share this port, pass on to this address what belongs to the engine's process.

    first_sequence_id: ids from here on are this front end's.
    """

    config: SchedulerConfig
    port: int
    engine_address: str
    first_sequence_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """A worker has said what it can do: load the tokenizer and take requests."""

    model: ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMissing:
    """Why there is no worker, for the requests that the next update ends over it."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Refuse new requests; say how many are live from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End all requests that are not over, and the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The port is shared, or why it cannot be."""

    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Requests are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was counted so far. num_live: requests whose callers are not done with them."""

    metrics: RequestMetrics
    num_live: int
    draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """lost: ids of the requests that were not over."""

    lost: tuple[str, ...]


Down = Listen | Serve | StepUpdate | WorkerMissing | Drain | Stop
Up = Listening | Serving | Message | Report | Stopped
