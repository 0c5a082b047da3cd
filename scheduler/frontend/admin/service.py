"""AdminService: the scheduler's figures, requests, blocks and steps over gRPC.

Runs on the engine's event loop and asks the inspector between the engine's turns. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc
import structlog

from octavo.serving.v1 import admin_pb2, admin_pb2_grpc
from scheduler.core.drop_prefix import PrefixSelection
from scheduler.frontend.admin import wire
from scheduler.frontend.admin.paging import limit, page
from scheduler.frontend.errors import InvalidRequestError, Violation
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.stats import Stats
from scheduler.frontend.statuses import with_status
from scheduler.frontend.validation import check_prompt
from scheduler.frontend.wire import to_prompt
from scheduler.inspector import Inspector, SequenceView
from scheduler.step_feed import StepFeed

_LOG = structlog.get_logger(__name__)
_DEFAULT_HOLDERS: Final = 5
_MAX_HOLDERS: Final = 100
# Page keys of requests that have no sequence id yet: after all that have one.
_PREPARING_KEYS: Final = 1 << 60
# More than any pool has: page keys of blocks are those of the workers before it and the block's number.
_BLOCKS_OF_A_WORKER: Final = 1 << 32

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """stats: returns the current figures; called on the event loop, must not block."""

    def __init__(self, stats: Callable[[], Stats], inspector: Inspector, frontend: Frontend, steps: StepFeed) -> None:
        self._stats = stats
        self._inspector = inspector
        self._frontend = frontend
        self._steps = steps

    async def GetStats(  # noqa: N802 - the names are the proto's, here and below
        self, request: admin_pb2.GetStatsRequest, context: _Context
    ) -> admin_pb2.GetStatsResponse:
        return wire.stats(self._stats())

    @with_status
    async def ListRequests(  # noqa: N802
        self, request: admin_pb2.ListRequestsRequest, context: _Context
    ) -> admin_pb2.ListRequestsResponse:
        _check_known("state", request.state, admin_pb2.SequenceState.values())
        keyed = [
            (_PREPARING_KEYS + place if view.sequence_id is None else view.sequence_id, view)
            for place, view in enumerate(self._inspector.sequences())
            if _is_selected(view, request)
        ]
        keyed.sort(key=lambda entry: entry[0])
        shown = page(keyed, lambda entry: entry[0], request.page_size, request.page_token)
        return admin_pb2.ListRequestsResponse(
            sequences=[wire.sequence_info(view) for _, view in shown.items],
            total=len(keyed),
            next_page_token=shown.next_token,
        )

    @with_status
    async def ExplainRequest(  # noqa: N802
        self, request: admin_pb2.ExplainRequestRequest, context: _Context
    ) -> admin_pb2.ExplainRequestResponse:
        most = limit("max_holders", request.max_holders, default=_DEFAULT_HOLDERS, most=_MAX_HOLDERS)
        return wire.explanation(self._inspector.explain(request.request_id, most), self._inspector.names())

    @with_status
    async def ListBlocks(  # noqa: N802
        self, request: admin_pb2.ListBlocksRequest, context: _Context
    ) -> admin_pb2.ListBlocksResponse:
        _check_known("state", request.state, admin_pb2.BlockState.values())
        if request.worker and not self._inspector.knows(request.worker):
            description = f"is {request.worker[:64]!r}, must be the address of a worker as GetStats gives it, or empty"
            raise InvalidRequestError((Violation(field="worker", description=description),))
        numbers = self._inspector.block_numbers(wire.BLOCK_STATES.get(request.state), request.worker)
        shown = page(numbers, _block_key, request.page_size, request.page_token)
        names = self._inspector.names()
        return admin_pb2.ListBlocksResponse(
            blocks=[wire.block_info(view, names) for view in self._inspector.blocks(shown.items)],
            total=len(numbers),
            next_page_token=shown.next_token,
        )

    @with_status
    async def GetBlockTable(  # noqa: N802
        self, request: admin_pb2.GetBlockTableRequest, context: _Context
    ) -> admin_pb2.GetBlockTableResponse:
        view = self._inspector.sequence(request.request_id, request.index)
        table = [] if view.sequence is None else list(enumerate(view.sequence.blocks))
        shown = page(table, lambda entry: entry[0], request.page_size, request.page_token)
        names = self._inspector.names()
        numbers = [] if view.worker is None else [(view.worker.number, block) for _, block in shown.items]
        return admin_pb2.GetBlockTableResponse(
            sequence=wire.sequence_info(view),
            block_size=self._inspector.block_size,
            blocks=[wire.block_info(block, names) for block in self._inspector.blocks(numbers)],
            next_page_token=shown.next_token,
        )

    @with_status
    async def ProbePrefix(  # noqa: N802
        self, request: admin_pb2.ProbePrefixRequest, context: _Context
    ) -> admin_pb2.ProbePrefixResponse:
        prompt = await self._frontend.encode(to_prompt(request))
        violations = tuple(check_prompt(prompt, None, self._frontend.model))
        if violations:
            raise InvalidRequestError(violations)
        worker, probe = self._inspector.probe(tuple(prompt.token_ids), request.cache_salt)
        return admin_pb2.ProbePrefixResponse(
            prompt_tokens=len(prompt.token_ids),
            cached_tokens=probe.num_cached_tokens,
            cacheable_tokens=probe.num_cacheable_tokens,
            blocks=probe.blocks,
            worker=worker,
        )

    @with_status
    async def DropPrefix(  # noqa: N802
        self, request: admin_pb2.DropPrefixRequest, context: _Context
    ) -> admin_pb2.DropPrefixResponse:
        selection = _selection(request)
        dropped, kept = self._inspector.drop_prefix(selection)
        _LOG.info(
            "prefixes dropped", cache_salt=selection.cache_salt, tenant=selection.tenant, dropped=dropped, kept=kept
        )
        return admin_pb2.DropPrefixResponse(dropped_blocks=dropped, kept_blocks=kept)

    @with_status
    async def WatchSteps(self, request: admin_pb2.WatchStepsRequest, context: _Context) -> None:  # noqa: N802
        # Writes rather than yields: a cancelled call must end this coroutine, not leave a generator to the collector.
        num_sent = 0
        with self._steps.watch() as watch:
            async for step in watch:
                await context.write(wire.watched_step(step))
                num_sent += 1
                if num_sent == request.max_steps:
                    return


def _block_key(number: tuple[int, int]) -> int:
    """A worker's first blocks keep their bare numbers as long as there is no other worker before it."""
    worker, block = number
    return (worker - 1) * _BLOCKS_OF_A_WORKER + block


def _is_selected(view: SequenceView, request: admin_pb2.ListRequestsRequest) -> bool:
    if request.state not in (admin_pb2.SEQUENCE_STATE_UNSPECIFIED, wire.state(view)):
        return False
    return not request.HasField("tenant") or (view.sequence is not None and view.sequence.tenant == request.tenant)


def _check_known(field: str, value: int, values: Sequence[int]) -> None:
    """An enum may hold a number of another version's."""
    if value not in values:
        description = f"is {value}, must be in [0, {max(values)}]"
        raise InvalidRequestError((Violation(field=field, description=description),))


def _selection(request: admin_pb2.DropPrefixRequest) -> PrefixSelection:
    match request.WhichOneof("selection"):
        case "cache_salt":
            return PrefixSelection(cache_salt=request.cache_salt)
        case "tenant":
            return PrefixSelection(tenant=request.tenant)
        case "all" if request.all:
            return PrefixSelection()
        case _:
            description = "is missing, give one of cache_salt, tenant and all: true"
            raise InvalidRequestError((Violation(field="selection", description=description),))
