"""Keeps a session open with one worker: finds it, opens a session, waits for its end, and begins again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from scheduler import wire
from scheduler.worker_client import WorkerClient, WorkerSession, WorkerUnavailableError

_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 1.0
_CAPACITY_TIMEOUT_S = 5.0

log = structlog.get_logger()


class WorkerLink:
    """See the module; made on the event loop, where it works until `stop`.

    config_digest: that a worker must have to be used. limits: of a session with a worker of some capacity.
    wake: called when a session has opened, and whenever something has happened to it.
    """

    def __init__(
        self,
        client: WorkerClient,
        config_digest: bytes,
        limits: Callable[[wire.WorkerCapacity], wire.SessionLimits],
        wake: Callable[[], None],
    ) -> None:
        self.why_not_connected = "no session was opened yet"
        """Why the last session ended, or the next one could not be opened."""
        self.capacity: wire.WorkerCapacity | None = None
        """What the worker could do when the last session was opened; None if none was."""
        self._client = client
        self._config_digest = config_digest
        self._limits = limits
        self._wake = wake
        self._opened: tuple[wire.WorkerCapacity, WorkerSession] | None = None
        self._session: WorkerSession | None = None
        self._task = asyncio.create_task(self._keep_connected())

    @property
    def address(self) -> str:
        """HOST:PORT of the worker."""
        return self._client.address

    def take_session(self) -> tuple[wire.WorkerCapacity, WorkerSession] | None:
        """A session that has opened since the last call, with what its worker can do."""
        opened, self._opened = self._opened, None
        return opened

    def check(self) -> None:
        """Raises what ended the work by mistake."""
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def stop(self) -> None:
        """Ends the session, and closes the channel."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._session is not None:
            self._session.end("the scheduler does not need it any more")
            await self._session.wait_ended()
        await self._client.close()

    async def _keep_connected(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                session = await self._connect()
            except (WorkerUnavailableError, wire.CapacityError) as error:
                if str(error) != self.why_not_connected:
                    self.why_not_connected = str(error)
                    log.warning("no session with the worker", worker=self.address, why=str(error))
            else:
                opened = time.monotonic()
                self._wake()
                await session.wait_ended()
                self.why_not_connected = session.ended or ""
                if session.ended_here:
                    # A network that swallows everything keeps a connection open for as long as keepalive is patient.
                    await self._client.reconnect()
                if time.monotonic() - opened >= _LAST_RETRY_S:
                    retry_s = _FIRST_RETRY_S
            # Also after a session: one that ends at once would be opened again at once, for ever.
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    async def _connect(self) -> WorkerSession:
        capacity = await self._client.capacity(_CAPACITY_TIMEOUT_S)
        if capacity.config_digest != self._config_digest:
            raise wire.CapacityError("the worker serves another model or configuration than the first one")
        session = await self._client.open_session(capacity, self._limits(capacity), self._wake)
        self._session, self.capacity = session, capacity
        self._opened = (capacity, session)
        return session
