"""What people ask about requests and blocks: joins what the workers' cores know by sequence with what the front end
knows by request.

Called on the engine's event loop, between its turns; every answer is of one moment. Nothing here changes a running
sequence; `drop_prefix` alone changes anything, and goes through the cores' verb of that name.
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
class InspectedWorker:
    """A worker and its core. number: in the order in which workers joined. connected: whether it is there."""

    number: int
    address: str
    core: Scheduler
    connected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBlock:
    """A block of a worker's pool."""

    worker: str
    view: BlockView


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceName:
    """What callers call a sequence. request_id: empty if the front end has let it go and the core has not yet."""

    request_id: str
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceView:
    """A sequence of a live request.

    sequence_id: None while the request is being tokenised. sequence: None also while it is on its way to the core.
    worker: the one whose core has it, None while none has. position: place in its queue there, 0 is the head.
    age_ns: since the request came.
    """

    name: SequenceName
    sequence_id: int | None = None
    age_ns: int = 0
    worker: InspectedWorker | None = None
    position: int = 0
    sequence: SequenceSnapshot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedSequence:
    """explanation: None while the view has no sequence."""

    view: SequenceView
    explanation: Explanation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExplanation:
    """holders: the largest of num_holders sequences that hold blocks of the same workers."""

    sequences: tuple[ExplainedSequence, ...]
    holders: tuple[Holder, ...]
    num_holders: int


class Inspector:
    """workers: those that there are now. requests: the front end's live ones. clock_ns: the engine's clock."""

    def __init__(
        self,
        workers: Callable[[], Sequence[InspectedWorker]],
        requests: Callable[[], Sequence[LiveRequest]],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._workers = workers
        self._requests = requests
        self._clock_ns = clock_ns

    @property
    def block_size(self) -> int:
        """Tokens per block; the same for all workers."""
        return next((worker.core.config.block_size for worker in self._workers()), 0)

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
        concerned = {view.worker.number: view.worker for view in views if view.worker is not None}
        holders: list[Holder] = []
        num_holders = 0
        for worker in concerned.values():
            found, count = block_holders(worker.core.snapshot(), max_holders)
            holders += found
            num_holders += count
        holders.sort(key=lambda holder: -len(holder.sequence.blocks))
        return RequestExplanation(
            sequences=tuple(
                ExplainedSequence(
                    view=view,
                    explanation=None
                    if view.worker is None or view.sequence is None
                    else explain(view.worker.core, view.sequence.sequence_id),
                )
                for view in views
            ),
            holders=tuple(holders[:max_holders]),
            num_holders=num_holders,
        )

    def block_numbers(self, state: BlockState | None, worker: str = "") -> list[tuple[int, int]]:
        """(worker's number, block) of the blocks in a state, or all, in this order; of one worker or of all."""
        numbers = []
        for one in self._workers():
            pool = one.core.blocks.pool
            if worker in ("", one.address):
                numbers += [
                    (one.number, block)
                    for block in range(pool.num_blocks)
                    if state is None or block_state(pool, block) is state
                ]
        return numbers

    def blocks(self, numbers: Sequence[tuple[int, int]]) -> list[WorkerBlock]:
        """What these blocks are used for, in the given order, as `block_numbers` gave them."""
        views = []
        for worker in self._workers():
            own = [block for number, block in numbers if number == worker.number]
            views += [WorkerBlock(worker=worker.address, view=view) for view in view_blocks(worker.core, own)]
        return views

    def knows(self, worker: str) -> bool:
        """Whether there is a worker of this address."""
        return any(one.address == worker for one in self._workers())

    def sequence(self, request_id: str, index: int) -> SequenceView:
        """One sequence of a request. Raises UnknownRequestError, also for an index that has ended or never was."""
        for view in self._views([self._find(request_id)]):
            if view.name.index == index:
                return view
        raise UnknownRequestError(request_id, index)

    def probe(self, token_ids: Sequence[int], cache_salt: str) -> tuple[str, PrefixProbe]:
        """What a prompt would find in the prefix cache now, at the worker that has most of it, and which that is."""
        best: tuple[str, PrefixProbe] = ("", PrefixProbe(blocks=(), num_cached_tokens=0, num_cacheable_tokens=0))
        for worker in self._workers():
            probe = probe_prefix(worker.core, token_ids, cache_salt)
            if not best[0] or probe.num_cached_tokens > best[1].num_cached_tokens:
                best = (worker.address, probe)
        return best

    def drop_prefix(self, selection: PrefixSelection) -> tuple[int, int]:
        """Blocks dropped, and blocks that stay because they are in use, of all workers."""
        counts = [worker.core.drop_prefix(selection) for worker in self._workers()]
        return sum(dropped for dropped, _ in counts), sum(kept for _, kept in counts)

    def _find(self, request_id: str) -> LiveRequest:
        for request in self._requests():
            if request.request_id == request_id:
                return request
        raise UnknownRequestError(request_id)

    def _views(self, requests: Sequence[LiveRequest]) -> list[SequenceView]:
        now_ns = self._clock_ns()
        places: dict[int, tuple[InspectedWorker | None, int, SequenceSnapshot | None]] = {}
        for worker in self._workers():
            picture = worker.core.snapshot()
            for queue in (picture.running, picture.swapped, picture.waiting):
                places.update({one.sequence_id: (worker, place, one) for place, one in enumerate(queue)})
        views = []
        for request in requests:
            age_ns = 0 if request.arrival_ns is None else now_ns - request.arrival_ns
            if not request.sequence_ids:
                views.append(SequenceView(name=SequenceName(request_id=request.request_id), age_ns=age_ns))
            for index, sequence_id in request.sequence_ids.items():
                holder, position, sequence = places.get(sequence_id, (None, 0, None))
                name = SequenceName(request_id=request.request_id, index=index)
                views.append(
                    SequenceView(
                        name=name,
                        sequence_id=sequence_id,
                        age_ns=age_ns,
                        worker=holder,
                        position=position,
                        sequence=sequence,
                    )
                )
        return views
