"""The engine's end of the front ends: starts their processes, and stands for all of them as one front end.

Every update goes to every front end, encoded once; each knows its own sequences. The hub knows which live request has
which sequences, so that request ids are unique over all front ends, those of one that dies can be cancelled, and
AdminService can name them. A front end that dies is started again; its callers see UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from scheduler.config import SchedulerConfig
from scheduler.core.result import EndReason
from scheduler.frontend.directory import LiveRequest
from scheduler.frontend.errors import DuplicateRequestError
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontends.channel import Channel, ChannelError, encode
from scheduler.frontends.protocol import (
    Drain,
    Listen,
    Listening,
    Report,
    Serve,
    Serving,
    Stop,
    Stopped,
    WorkerMissing,
)
from scheduler.listen import ListenError
from scheduler.messages import Add, Cancel, Finish, Message, Rejected, StepUpdate
from scheduler.metrics.request_metrics import RequestMetrics

_RESTART_S: Final = 1.0
_STOP_S: Final = 10.0
# Of sequence ids: each front end that is ever started has a range of its own.
_IDS_EACH: Final = 1 << 32

log = structlog.get_logger()


@dataclass(slots=True)
class _Member:
    """One front end. owned: its live sequences, with the request of each. ready: when it takes requests. Its report is
    None until the first one, and after a drain until the first one from then."""

    number: int
    process: asyncio.subprocess.Process
    channel: Channel
    owned: dict[int, str] = field(default_factory=dict)
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    error: str = ""
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    num_live: int | None = None
    lost: tuple[str, ...] | None = None


class Hub:
    """port: the public one. engine_address: of the server that answers what front ends pass on."""

    def __init__(self, config: SchedulerConfig, port: int, engine_address: str) -> None:
        self._send: Callable[[Message], None] = lambda message: None
        self._why_unavailable: Callable[[], str] = str
        self._config = config
        self._port = port
        self._engine_address = engine_address
        self._numbers = itertools.count()
        self._members: dict[int, _Member] = {}
        self._requests: dict[str, LiveRequest] = {}
        self._retired = RequestMetrics()
        self._model: ModelInfo | None = None
        self._draining = self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts the processes; returns once all listen. Raises ListenError."""
        members = await asyncio.gather(*(self._start_one() for _ in range(self._config.frontends)))
        await asyncio.gather(*(member.listening.wait() for member in members))
        for member in members:
            if member.error:
                raise ListenError(f"cannot listen on port {self._port}: {member.error}")

    async def serve(
        self, model: ModelInfo, send: Callable[[Message], None], *, why_unavailable: Callable[[], str]
    ) -> None:
        """Has all take requests; returns once they do. Raises ListenError if one ends instead.

        send: hands a message to the engine. why_unavailable: why there is no worker.
        """
        self._model, self._send, self._why_unavailable = model, send, why_unavailable
        members = list(self._members.values())
        for member in members:
            member.channel.send(Serve(model=model))
        await asyncio.gather(*(member.ready.wait() for member in members))
        for member in members:
            if member.error:
                raise ListenError(f"front end {member.number}: {member.error}")

    @property
    def num_live(self) -> int:
        """Requests whose callers are not done with them; 1 for a front end that has not said how many."""
        return sum(1 if member.num_live is None else member.num_live for member in self._members.values())

    def requests(self) -> list[LiveRequest]:
        """All live requests in order of arrival; those that are being tokenised are known to their front ends only."""
        return list(self._requests.values())

    def metrics(self) -> RequestMetrics:
        """What all have counted, those that are gone included."""
        total = RequestMetrics()
        total.add(self._retired)
        for member in self._members.values():
            total.add(member.metrics)
        return total

    def deliver(self, update: StepUpdate) -> None:
        """Passes on what one step brought."""
        if any(end.reason is EndReason.WORKER_LOST for end in update.ends):
            self._tell_all(encode(WorkerMissing(why=self._why_unavailable())))
        self._tell_all(encode(update))
        for member in self._members.values():
            for end in update.ends:
                self._forget(member, end.sequence_id)
            for rejected in update.rejected:  # the first of a request stands for all
                request = self._requests.get(member.owned.get(rejected.sequence_id, ""))
                for sequence_id in () if request is None else request.sequence_ids.values():
                    self._forget(member, sequence_id)

    def drain(self) -> None:
        """Refuses new requests from now on."""
        self._draining = True
        for member in self._members.values():
            member.num_live = None
        self._tell_all(encode(Drain()))

    async def shut_down(self) -> list[str]:
        """Ends all requests that are not over, and the processes. Returns the ids of the lost ones."""
        self._stopping = True
        members = list(self._members.values())
        lost = {id_ for member in members for id_ in member.owned.values()}
        self._tell_all(encode(Stop()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await asyncio.gather(*(member.process.wait() for member in members))
                await asyncio.gather(*self._tasks)  # they have read what was said last
        self.kill()
        for member in members:
            lost |= set(member.lost or ())
        return sorted(lost)

    def kill(self) -> None:
        """Ends the processes at once."""
        self._stopping = True
        for member in self._members.values():
            if member.process.returncode is None:
                member.process.kill()

    # -- one front end -----------------------------------------------------------------------------------------------

    async def _start_one(self) -> _Member:
        ours, theirs = socket.socketpair()
        with theirs:
            flags = ["-P"] if sys.flags.safe_path else []
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *flags, "-m", "scheduler.frontends", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        number = next(self._numbers)
        member = _Member(number, process, await Channel.open(ours))
        self._members[number] = member
        member.channel.send(
            Listen(
                config=self._config,
                port=self._port,
                engine_address=self._engine_address,
                first_sequence_id=1 + number * _IDS_EACH,
            )
        )
        task = asyncio.create_task(self._keep(member))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return member

    async def _keep(self, member: _Member) -> None:
        """Listens to a front end until it is gone, and starts another one in its place."""
        try:
            while True:
                self._take(member, await member.channel.receive())
        except ChannelError:
            pass
        member.channel.close()
        code = await member.process.wait()
        self._bury(member)
        if self._stopping:
            return
        log.error("a front end ended", frontend=member.number, exit_code=code, requests=len(set(member.owned.values())))
        if not member.ready.is_set():
            member.error = member.error or f"the process ended with status {code}"
            member.listening.set()
            member.ready.set()
            return  # before it ever served: starting it again would end in the same way
        await asyncio.sleep(_RESTART_S)
        if self._stopping or self._draining:
            return
        successor = await self._start_one()
        if self._model is not None:
            successor.channel.send(Serve(model=self._model))

    def _bury(self, member: _Member) -> None:
        """Cancels what a front end has left behind, and keeps what it has counted."""
        del self._members[member.number]
        member.metrics.live = member.metrics.unread_tokens = 0
        self._retired.add(member.metrics)
        for sequence_id, request_id in member.owned.items():
            self._requests.pop(request_id, None)
            self._retired.finished[EndReason.ABORT.value] += 1
            self._send(Cancel(sequence_id=sequence_id))

    def _take(self, member: _Member, message: object) -> None:
        match message:
            case Add():
                self._add(member, message)
            case Cancel() | Finish():
                self._forget(member, message.sequence_id)
                self._send(message)
            case Report():
                member.metrics = message.metrics
                if message.draining or not self._draining:
                    member.num_live = message.num_live
            case Listening():
                member.error = message.error
                member.listening.set()
            case Serving():
                member.ready.set()
            case Stopped():
                member.lost = message.lost

    def _add(self, member: _Member, message: Add) -> None:
        if message.request_id in self._requests:
            error = DuplicateRequestError(message.request_id)
            rejected = Rejected(
                sequence_id=message.specs[0].sequence_id,
                kind=type(error).__name__,
                message=str(error),
                field="request_id",
                value=message.request_id,
                limit="",
            )
            self._tell(member, encode(StepUpdate(now_ns=message.arrival_ns, rejected=(rejected,))))
            return
        ids = {index: spec.sequence_id for index, spec in enumerate(message.specs)}
        self._requests[message.request_id] = LiveRequest(
            request_id=message.request_id, sequence_ids=ids, arrival_ns=message.arrival_ns
        )
        member.owned.update(dict.fromkeys(ids.values(), message.request_id))
        self._send(message)

    def _forget(self, member: _Member, sequence_id: int) -> None:
        """A sequence has ended, and with the last one its request."""
        request_id = member.owned.pop(sequence_id, None)
        if request_id is None or (request := self._requests.get(request_id)) is None:
            return
        left = {index: id_ for index, id_ in request.sequence_ids.items() if id_ != sequence_id}
        if left:
            self._requests[request_id] = replace(request, sequence_ids=left)
        else:
            del self._requests[request_id]

    def _tell_all(self, content: bytes) -> None:
        for member in self._members.values():
            self._tell(member, content)

    def _tell(self, member: _Member, content: bytes) -> None:
        try:
            member.channel.send_encoded(content)
        except ChannelError as error:
            if member.process.returncode is None and not self._stopping:
                log.error("a front end is ended", frontend=member.number, why=str(error))
                member.process.kill()
