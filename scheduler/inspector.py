"""What people ask about requests and blocks: joins what the core knows by sequence with what the front end knows by
request.

Called on the engine's event loop, between its turns; every answer is of one moment. Nothing here changes a running
sequence; `drop_prefix` alone changes anything, and goes through the core's verb of that name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.core.block_views import BlockState, BlockView, block_state, view_blocks
from scheduler.core.drop_prefix import PrefixSelection
from scheduler.core.explain import Explanation, Holder, block_holders, explain
from scheduler.core.probe import PrefixProbe, probe_prefix
from scheduler.core.scheduler import Scheduler
from scheduler.core.snapshot import SequenceSnapshot
from scheduler.frontend.directory import LiveRequest
from scheduler.frontend.errors import UnknownRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceName:
    """What callers call a sequence. request_id: empty if the front end has let it go and the core has not yet."""

    request_id: str
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceView:
    """A sequence of a live request.

    sequence_id: None while the request is being tokenised. sequence: None also while it is on its way to the core.
    position: place in its queue, 0 is the head. age_ns: since the request came.
    """

    name: SequenceName
    sequence_id: int | None = None
    age_ns: int = 0
    position: int = 0
    sequence: SequenceSnapshot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedSequence:
    """explanation: None while the view has no sequence."""

    view: SequenceView
    explanation: Explanation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExplanation:
    """connected: whether there is a worker. holders: the largest of num_holders sequences that
    hold blocks."""

    sequences: tuple[ExplainedSequence, ...]
    connected: bool
    holders: tuple[Holder, ...]
    num_holders: int


class Inspector:
    """requests: the front end's live ones. connected: whether there is a worker. clock_ns: the engine's clock."""

    def __init__(
        self,
        core: Scheduler,
        requests: Callable[[], Sequence[LiveRequest]],
        *,
        connected: Callable[[], bool],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._core = core
        self._requests = requests
        self._connected = connected
        self._clock_ns = clock_ns

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._core.config.block_size

    def names(self) -> dict[int, SequenceName]:
        """Names by sequence id."""
        return {
            sequence_id: SequenceName(request_id=request.request_id, index=index)
            for request in self._requests()
            for index, sequence_id in request.sequence_ids.items()
        }

    def sequences(self) -> list[SequenceView]:
        """The sequences of all live requests, in order of arrival; those that are being tokenised last."""
        return self._views(self._requests())

    def explain(self, request_id: str, max_holders: int) -> RequestExplanation:
        """Why a request is where it is. Raises UnknownRequestError."""
        views = self._views([self._find(request_id)])
        holders, num_holders = block_holders(self._core.snapshot(), max_holders)
        return RequestExplanation(
            sequences=tuple(
                ExplainedSequence(
                    view=view,
                    explanation=None if view.sequence is None else explain(self._core, view.sequence.sequence_id),
                )
                for view in views
            ),
            connected=self._connected(),
            holders=tuple(holders),
            num_holders=num_holders,
        )

    def block_numbers(self, state: BlockState | None) -> list[int]:
        """The blocks in a state, or all, in order of their numbers."""
        pool = self._core.blocks.pool
        return [block for block in range(pool.num_blocks) if state is None or block_state(pool, block) is state]

    def blocks(self, numbers: Sequence[int]) -> list[BlockView]:
        """What these blocks are used for, in the given order."""
        return view_blocks(self._core, numbers)

    def sequence(self, request_id: str, index: int) -> SequenceView:
        """One sequence of a request. Raises UnknownRequestError, also for an index that has ended or never was."""
        for view in self._views([self._find(request_id)]):
            if view.name.index == index:
                return view
        raise UnknownRequestError(request_id, index)

    def probe(self, token_ids: Sequence[int], cache_salt: str) -> PrefixProbe:
        """What a prompt would find in the prefix cache now."""
        return probe_prefix(self._core, token_ids, cache_salt)

    def drop_prefix(self, selection: PrefixSelection) -> tuple[int, int]:
        """Blocks dropped, and blocks that stay because they are in use."""
        return self._core.drop_prefix(selection)

    def _find(self, request_id: str) -> LiveRequest:
        for request in self._requests():
            if request.request_id == request_id:
                return request
        raise UnknownRequestError(request_id)

    def _views(self, requests: Sequence[LiveRequest]) -> list[SequenceView]:
        picture, now_ns = self._core.snapshot(), self._clock_ns()
        places = {
            sequence.sequence_id: (position, sequence)
            for queue in (picture.running, picture.swapped, picture.waiting)
            for position, sequence in enumerate(queue)
        }
        views = []
        for request in requests:
            age_ns = 0 if request.arrival_ns is None else now_ns - request.arrival_ns
            if not request.sequence_ids:
                views.append(SequenceView(name=SequenceName(request_id=request.request_id), age_ns=age_ns))
            for index, sequence_id in request.sequence_ids.items():
                position, sequence = places.get(sequence_id, (0, None))
                name = SequenceName(request_id=request.request_id, index=index)
                views.append(
                    SequenceView(
                        name=name, sequence_id=sequence_id, age_ns=age_ns, position=position, sequence=sequence
                    )
                )
        return views
