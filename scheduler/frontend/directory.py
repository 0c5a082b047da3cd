"""Which live request has which sequences: the bridge between the ids that callers know and the core's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.frontend.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """A request between its arrival and its end.

    sequence_ids: its live sequences' ids in the core, by their index; empty while it is being tokenised.
    arrival_ns: on the engine's clock, None until then.
    """

    request_id: str
    sequence_ids: Mapping[int, int] = field(default_factory=dict)
    arrival_ns: int | None = None

    @classmethod
    def of(cls, stream: Stream) -> LiveRequest:
        """The request of a stream."""
        return cls(request_id=stream.request_id, sequence_ids=stream.live_sequence_ids, arrival_ns=stream.arrival_ns)
