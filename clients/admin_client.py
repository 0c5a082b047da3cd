"""Between the clients' values and the messages of octavo.serving.v1.AdminService."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, TypeVar

from clients.inspection import BlockHolder, BlockInfo, Explanation, PrefixDrop, SequenceExplanation, SequenceInfo
from clients.stats import BlockStats, CounterStats, HostBlockStats, QueueStats, Stats, WorkerStats
from octavo.serving.v1 import admin_pb2, admin_pb2_grpc

AdminStub: Final = admin_pb2_grpc.AdminServiceStub

_PAGE_SIZE: Final = 1000

_T = TypeVar("_T", QueueStats, BlockStats, HostBlockStats, CounterStats, BlockHolder, PrefixDrop)


def stats_request() -> admin_pb2.GetStatsRequest:
    """The request of GetStats."""
    return admin_pb2.GetStatsRequest()


def stats(response: admin_pb2.GetStatsResponse) -> Stats:
    """The figures as values. The classes carry the messages' field names."""
    return Stats(
        queues=_read(QueueStats, response.queues),
        blocks=_read(BlockStats, response.blocks),
        counters=_read(CounterStats, response.counters),
        worker=_worker(response.worker),
        host_blocks=_read(HostBlockStats, response.host_blocks),
        workers=tuple(map(_worker, response.workers)),
    )


def _worker(message: admin_pb2.WorkerStats) -> WorkerStats:
    values = {field.name: getattr(message, field.name) for field in fields(WorkerStats)}
    values["queues"] = _read(QueueStats, message.queues)
    values["blocks"] = _read(BlockStats, message.blocks)
    values["host_blocks"] = _read(HostBlockStats, message.host_blocks)
    return WorkerStats(**values)


def list_requests_request(state: str, tenant: str | None, page_token: str) -> admin_pb2.ListRequestsRequest:
    """A page of ListRequests. state: a name, or "" for all."""
    return admin_pb2.ListRequestsRequest(
        state=_number(admin_pb2.SequenceState, state), tenant=tenant, page_size=_PAGE_SIZE, page_token=page_token
    )


def list_blocks_request(state: str, worker: str, page_token: str) -> admin_pb2.ListBlocksRequest:
    """A page of ListBlocks. state: a name, or "" for all. worker: an address, or "" for all."""
    return admin_pb2.ListBlocksRequest(
        state=_number(admin_pb2.BlockState, state), worker=worker, page_size=_PAGE_SIZE, page_token=page_token
    )


def block_table_request(request_id: str, index: int, page_token: str) -> admin_pb2.GetBlockTableRequest:
    """A page of GetBlockTable."""
    return admin_pb2.GetBlockTableRequest(
        request_id=request_id, index=index, page_size=_PAGE_SIZE, page_token=page_token
    )


def explain_request(request_id: str) -> admin_pb2.ExplainRequestRequest:
    """The request of ExplainRequest."""
    return admin_pb2.ExplainRequestRequest(request_id=request_id)


def drop_prefix_request(cache_salt: str | None, tenant: str | None) -> admin_pb2.DropPrefixRequest:
    """The request of DropPrefix: one of the two, or neither for all prefixes."""
    if cache_salt is None and tenant is None:
        return admin_pb2.DropPrefixRequest(all=True)
    return admin_pb2.DropPrefixRequest(cache_salt=cache_salt, tenant=tenant)


def sequence_info(message: admin_pb2.SequenceInfo) -> SequenceInfo:
    """A sequence as a value."""
    values = {field.name: getattr(message, field.name) for field in fields(SequenceInfo)}
    values["state"] = _name(admin_pb2.SequenceState, message.state)
    values["row"] = message.row if message.HasField("row") else None
    return SequenceInfo(**values)


def explanation(response: admin_pb2.ExplainRequestResponse) -> Explanation:
    """An explanation as values."""
    return Explanation(
        summary=response.summary,
        sequences=tuple(
            SequenceExplanation(
                sentence=entry.sentence,
                constraint=_name(admin_pb2.Constraint, entry.constraint),
                sequence=sequence_info(entry.sequence),
                history=tuple(record.text for record in entry.history),
            )
            for entry in response.sequences
        ),
        holders=tuple(_read(BlockHolder, holder) for holder in response.holders),
        total_holders=response.total_holders,
    )


def block_info(message: admin_pb2.BlockInfo) -> BlockInfo:
    """A block as a value."""
    values = {field.name: getattr(message, field.name) for field in fields(BlockInfo)}
    values["state"] = _name(admin_pb2.BlockState, message.state)
    values["users"] = tuple((user.request_id, user.index, user.table_index) for user in message.users)
    return BlockInfo(**values)


def prefix_drop(response: admin_pb2.DropPrefixResponse) -> PrefixDrop:
    """The counts as a value."""
    return _read(PrefixDrop, response)


def _name(enum: Any, number: int) -> str:
    """SEQUENCE_STATE_RUNNING of SequenceState is "running"; a number of another version's is itself."""
    value = enum.DESCRIPTOR.values_by_number.get(number)
    return str(number) if value is None else value.name.removeprefix(_prefix(enum)).lower()


def _number(enum: Any, name: str) -> Any:
    return enum.DESCRIPTOR.values_by_name[_prefix(enum) + (name.upper() or "UNSPECIFIED")].number


def _prefix(enum: Any) -> str:
    return str(enum.DESCRIPTOR.values_by_number[0].name).removesuffix("UNSPECIFIED")


def _read(kind: type[_T], message: Any) -> _T:
    return kind(**{field.name: getattr(message, field.name) for field in fields(kind)})
