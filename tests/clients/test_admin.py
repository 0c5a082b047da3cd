"""The admin client and its commands, against a scripted server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import grpc
import pytest

from clients import AdminClient, NotFoundError, inspection
from octavo.serving.v1 import admin_pb2, admin_pb2_grpc
from tests.clients.test_cli import octavo

RUNNING = admin_pb2.SequenceInfo(
    request_id="a",
    state=admin_pb2.SEQUENCE_STATE_RUNNING,
    queue_position=1,
    age_seconds=1.25,
    prompt_tokens=10,
    output_tokens=2,
    max_tokens=8,
    computed_tokens=11,
    blocks=3,
    row=0,
    tenant="acme",
    sequence_id=7,
)
WAITING = admin_pb2.SequenceInfo(
    request_id="b", index=1, state=admin_pb2.SEQUENCE_STATE_WAITING, queue_position=2, preemptions=1, sequence_id=9
)


class AdminPeer(admin_pb2_grpc.AdminServiceServicer):
    """Serves two pages of everything and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def ListRequests(self, request: Any, context: Any) -> Any:  # noqa: N802 - the names are the proto's, here and below
        self.requests.append(request)
        if not request.page_token:
            return admin_pb2.ListRequestsResponse(sequences=[RUNNING], total=2, next_page_token="9")
        return admin_pb2.ListRequestsResponse(sequences=[WAITING], total=2)

    def ExplainRequest(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.request_id != "b":
            context.abort(grpc.StatusCode.NOT_FOUND, "is not a live request")
        sentence = "needs 7 blocks, 3 free, 2 evictable, watermark 1"
        record = admin_pb2.DecisionRecord(step_id=12, text="step 12: preempted, blocks 3")
        told = admin_pb2.SequenceExplanation(
            sentence=sentence, constraint=admin_pb2.CONSTRAINT_BLOCKS, sequence=WAITING, history=[record]
        )
        holder = admin_pb2.BlockHolder(request_id="a", blocks=3, exclusive_blocks=2, tenant="acme")
        return admin_pb2.ExplainRequestResponse(summary=sentence, sequences=[told], holders=[holder], total_holders=1)

    def ListBlocks(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        if not request.page_token:
            block = admin_pb2.BlockInfo(block=0, state=admin_pb2.BLOCK_STATE_FREE)
            return admin_pb2.ListBlocksResponse(blocks=[block], next_page_token="1")
        return admin_pb2.ListBlocksResponse(blocks=[_used_block()])

    def GetBlockTable(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        return admin_pb2.GetBlockTableResponse(blocks=[_used_block()])

    def DropPrefix(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        return admin_pb2.DropPrefixResponse(dropped_blocks=3, kept_blocks=1)


def _used_block() -> Any:
    return admin_pb2.BlockInfo(
        block=1,
        state=admin_pb2.BLOCK_STATE_REFERENCED,
        references=1,
        tokens=16,
        indexed=True,
        users=[admin_pb2.BlockUser(request_id="a", index=1, table_index=4)],
        tenant="acme",
    )


@pytest.fixture
def admin() -> Iterator[tuple[AdminPeer, str]]:
    peer, server = AdminPeer(), grpc.server(ThreadPoolExecutor(2))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(peer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield peer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_lists_are_read_to_their_last_page(admin: tuple[AdminPeer, str]) -> None:
    peer, target = admin
    with AdminClient(target, timeout=10) as client:
        running, waiting = client.requests(state="running", tenant="acme")
        assert (running.state, running.row, running.sequence_id, running.age_seconds) == ("running", 0, 7, 1.25)
        assert (waiting.state, waiting.row, waiting.index) == ("waiting", None, 1)
        first, second = peer.requests
        assert (first.state, first.tenant, first.page_token) == (admin_pb2.SEQUENCE_STATE_RUNNING, "acme", "")
        assert second.page_token == "9"
        list(client.requests())
        assert (peer.requests[2].state, peer.requests[2].HasField("tenant")) == (0, False)
        free, used = client.blocks()
        assert (free.state, used.state, used.users) == ("free", "referenced", (("a", 1, 4),))
        assert [block.block for block in client.block_table("a", 2)] == [1]
        assert (peer.requests[-1].request_id, peer.requests[-1].index) == ("a", 2)


def test_what_is_dropped_is_what_was_named(admin: tuple[AdminPeer, str]) -> None:
    peer, target = admin
    with AdminClient(target, timeout=10) as client:
        assert client.drop_prefix() == inspection.PrefixDrop(dropped_blocks=3, kept_blocks=1)
        client.drop_prefix(cache_salt="")
        client.drop_prefix(tenant="acme")
        with pytest.raises(ValueError, match="not both"):
            client.drop_prefix(cache_salt="s", tenant="t")
    assert [request.WhichOneof("selection") for request in peer.requests] == ["all", "cache_salt", "tenant"]


def test_an_unknown_request_is_not_found(admin: tuple[AdminPeer, str]) -> None:
    with AdminClient(admin[1], timeout=10) as client, pytest.raises(NotFoundError, match="not a live request"):
        client.explain("x")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (inspection.SequenceInfo, admin_pb2.SequenceInfo),
        (inspection.BlockHolder, admin_pb2.BlockHolder),
        (inspection.Explanation, admin_pb2.ExplainRequestResponse),
        (inspection.BlockInfo, admin_pb2.BlockInfo),
        (inspection.PrefixDrop, admin_pb2.DropPrefixResponse),
    ],
)
def test_a_value_has_the_fields_of_its_message(value: Any, message: Any) -> None:
    assert {field.name for field in fields(value)} == set(message.DESCRIPTOR.fields_by_name)


def test_requests_are_printed_as_a_table(admin: tuple[AdminPeer, str]) -> None:
    done = octavo("requests", "--target", admin[1])
    assert done.returncode == 0
    header, running, waiting = done.stdout.splitlines()
    assert header.split()[:4] == ["REQUEST", "STATE", "PLACE", "AGE"]
    assert running.split() == ["a", "running", "1", "1.2", "s", "10", "2", "11", "3", "0", "0", "acme"]
    assert waiting.startswith("b [1]")


def test_an_explanation_is_printed_with_history_and_holders(admin: tuple[AdminPeer, str]) -> None:
    done = octavo("explain", "b", "--target", admin[1])
    assert done.stdout.splitlines() == [
        "b needs 7 blocks, 3 free, 2 evictable, watermark 1",
        "    step 12: preempted, blocks 3",
        "who holds blocks, 1 of 1:",
        "  a: 3, 2 of them alone",
    ]
    missing = octavo("explain", "x", "--target", admin[1])
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "NOT_FOUND" in missing.stderr


def test_blocks_are_printed_as_a_table(admin: tuple[AdminPeer, str]) -> None:
    everything = octavo("blocks", "--target", admin[1]).stdout.splitlines()
    assert [line.split()[:2] for line in everything[1:]] == [["0", "free"], ["1", "referenced"]]
    table = octavo("blocks", "a", "--target", admin[1]).stdout.splitlines()
    assert table[1].split() == ["1", "referenced", "1", "16", "yes", "a[1]", "acme"]
