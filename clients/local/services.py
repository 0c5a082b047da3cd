"""A scheduler and a worker on this machine, from their start to their end.

- A worker that dies after the start is started again, with growing pauses; the scheduler keeps the requests meanwhile.
- A worker that hangs is killed first: the scheduler has dropped its stream over an overdue step (--step-timeout), and
  it does not open another one.
- A scheduler that dies ends everything: what it knew is lost.
- At shutdown the scheduler drains first, while the worker still computes for it; then the worker goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Self

from clients.aio import AsyncClient
from clients.errors import DeadlineError, UnavailableError
from clients.local.address import Address
from clients.local.child import Child
from clients.local.errors import LocalError
from clients.local.notices import notice
from clients.results import ModelInfo

_POLL_SECONDS = 0.05
_WORKER_STOP_SECONDS = 10.0
_SCHEDULER_STOP_SECONDS = 5.0  # from the second signal on
_MAX_PAUSE_SECONDS = 30.0
_HANG_POLL_SECONDS = 0.5
_HUNG_SECONDS = 5.0  # without a stream, after it had one; a worker that is well opens the next one within a second
_HEALTHY_SECONDS = 60.0  # a worker that lived this long starts the pauses afresh


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesConfig:
    """What to start, and where. The arguments hold everything but the addresses."""

    scheduler: Address
    worker: Address
    scheduler_arguments: tuple[str, ...]
    worker_arguments: tuple[str, ...]


class Services:
    """An async context: leaving it kills what still runs."""

    def __init__(self, config: ServicesConfig, log: IO[bytes] | None = None) -> None:
        self._config = config
        self._log = log
        self._scheduler: Child | None = None
        self._worker: Child | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._in_haste = False

    async def start(self) -> ModelInfo:
        """Start both and wait until they serve. Raises LocalError if one ends before."""
        self._worker = await self._start_worker()
        places = (*self._config.scheduler.flags, f"--worker={self._config.worker.target}")
        self._scheduler = await Child.start("scheduler", (*places, *self._config.scheduler_arguments), self._log)
        info = await self._serving()
        self._keeper = asyncio.create_task(self._keep_worker())
        return info

    async def wait(self) -> None:
        """Wait for the scheduler's end, which only an error or `drain` brings about."""
        if self._scheduler is not None:
            await self._scheduler.wait()
            raise LocalError(f"the scheduler {self._scheduler.fate}")

    async def drain(self) -> int:
        """Let running requests end, then stop both. 0 only if nothing was lost."""
        status = 0
        if self._scheduler is not None:
            status = await self._scheduler.stop(grace=None)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._worker is not None:
            await self._worker.stop(grace=0 if self._in_haste else _WORKER_STOP_SECONDS)
        return status

    def stop_now(self) -> None:
        """End both without waiting for requests. The scheduler tells their callers, which takes it a moment."""
        self._in_haste = True
        if self._scheduler is None:
            self.kill()
            return
        self._scheduler.interrupt()
        asyncio.get_running_loop().call_later(_SCHEDULER_STOP_SECONDS, self.kill)

    def kill(self) -> None:
        """End both at once."""
        if self._keeper is not None:
            self._keeper.cancel()
        for child in (self._scheduler, self._worker):
            if child is not None:
                child.kill()

    async def _start_worker(self) -> Child:
        return await Child.start("worker", (*self._config.worker.flags, *self._config.worker_arguments), self._log)

    async def _serving(self) -> ModelInfo:
        async with AsyncClient(self._config.scheduler.target) as client:
            while True:
                for child in (self._worker, self._scheduler):
                    if child is not None and not child.running:
                        raise LocalError(f"the {child.name} {child.fate} before it served")
                try:
                    if await client.health(timeout=1):
                        return await client.model_info(timeout=10)
                except (UnavailableError, DeadlineError):
                    pass  # not listening yet
                await asyncio.sleep(_POLL_SECONDS)

    async def _keep_worker(self) -> None:
        pause = 0.0
        while self._worker is not None:
            started = time.monotonic()
            hang = asyncio.create_task(self._kill_when_hung(self._worker))
            try:
                await self._worker.wait()
            finally:
                hang.cancel()
            if time.monotonic() - started > _HEALTHY_SECONDS:
                pause = 0.0
            when = f" in {pause:g} s" if pause else ""
            notice(f"the worker {self._worker.fate}; starting it again{when}")
            await asyncio.sleep(pause)
            pause = min(max(1.0, 2 * pause), _MAX_PAUSE_SECONDS)
            self._worker = await self._start_worker()

    async def _kill_when_hung(self, worker: Child) -> None:
        had_stream, since = False, time.monotonic()
        async with AsyncClient(self._config.scheduler.target) as client:
            while not had_stream or time.monotonic() - since < _HUNG_SECONDS:
                await asyncio.sleep(_HANG_POLL_SECONDS)
                with contextlib.suppress(UnavailableError, DeadlineError):
                    if (await client.stats(timeout=_HUNG_SECONDS)).worker.connected:
                        had_stream, since = True, time.monotonic()
        notice(f"the worker runs, but has no stream with the scheduler for {_HUNG_SECONDS:g} s; killing it")
        worker.kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
