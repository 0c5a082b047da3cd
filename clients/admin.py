"""The synchronous client for people and scripts that look into a running scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import grpc

from clients import admin_client
from clients.channel import OPTIONS, begin
from clients.inspection import BlockInfo, Explanation, PrefixDrop, SequenceInfo
from clients.status_client import octavo_error


class AdminClient:
    """A connection to an Octavo server at `target` (HOST:PORT). timeout: seconds per call; None waits for ever.

    Every method raises an `OctavoError` when its call fails. Lists are read page by page while they are iterated.
    """

    def __init__(self, target: str, *, timeout: float | None = None) -> None:
        self._channel = grpc.insecure_channel(target, options=OPTIONS)
        self._admin = admin_client.AdminStub(self._channel)
        self._timeout = timeout

    def requests(self, *, state: str = "", tenant: str | None = None) -> Iterator[SequenceInfo]:
        """The sequences of live requests, oldest first. state: "preparing", "waiting", "running" or "swapped"."""
        pages = self._pages(
            self._admin.ListRequests, lambda token: admin_client.list_requests_request(state, tenant, token)
        )
        return (admin_client.sequence_info(message) for page in pages for message in page.sequences)

    def explain(self, request_id: str) -> Explanation:
        """Why a request is where it is. Raises NotFoundError if it is not live."""
        return admin_client.explanation(
            self._answer(self._admin.ExplainRequest, admin_client.explain_request(request_id))
        )

    def blocks(self, *, state: str = "", worker: str = "") -> Iterator[BlockInfo]:
        """The blocks of the KV cache in order of their numbers, worker by worker. state: "free", "cached" or
        "referenced". worker: the address of one, as in the stats."""
        pages = self._pages(
            self._admin.ListBlocks, lambda token: admin_client.list_blocks_request(state, worker, token)
        )
        return (admin_client.block_info(message) for page in pages for message in page.blocks)

    def block_table(self, request_id: str, index: int = 0) -> Iterator[BlockInfo]:
        """The blocks of one sequence in order of its tokens. Raises NotFoundError if it is not live."""
        pages = self._pages(
            self._admin.GetBlockTable, lambda token: admin_client.block_table_request(request_id, index, token)
        )
        return (admin_client.block_info(message) for page in pages for message in page.blocks)

    def drop_prefix(self, *, cache_salt: str | None = None, tenant: str | None = None) -> PrefixDrop:
        """Drops cached prefixes that nobody uses: of a salt, or of a tenant, or without either all of them."""
        if cache_salt is not None and tenant is not None:
            raise ValueError("give cache_salt or tenant, not both")
        request = admin_client.drop_prefix_request(cache_salt, tenant)
        return admin_client.prefix_drop(self._answer(self._admin.DropPrefix, request))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pages(self, method: Any, request: Callable[[str], object]) -> Iterator[Any]:
        token = ""
        while True:
            page = self._answer(method, request(token))
            yield page
            token = page.next_page_token
            if not token:
                return

    def _answer(self, method: Any, request: object) -> Any:
        try:
            return begin(method, request, self._timeout)
        except grpc.RpcError as error:
            raise octavo_error(error) from None
