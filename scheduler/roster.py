"""Which workers there are: the targets of --worker, and what their names stand for now.

A target is HOST:PORT, or whatever else gRPC takes, and is one worker; or a name that stands for many, looked up again
and again: `dns:///NAME:PORT`, and NAME:PORT if it has several addresses of one family when the scheduler starts. A
lookup that fails, or finds nothing, changes nothing: a resolver that is down must not take the workers along.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Final

import structlog

RESOLVE_INTERVAL_S: Final = 2.0
_DNS: Final = "dns:"

log = structlog.get_logger()


class Roster:
    """targets: as given. Looks names up in a thread of the event loop's pool."""

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = tuple(targets)
        self._groups: set[str] = {target for target in targets if target.startswith(_DNS)}
        self._found: dict[str, tuple[str, ...]] = {}
        self._complaints: dict[str, str] = {}

    async def addresses(self) -> tuple[str, ...]:
        """All workers, in the order of the targets, each once."""
        found: dict[str, None] = {}
        for target in self._targets:
            found.update(dict.fromkeys(await self._addresses_of(target)))
        return tuple(found)

    async def follow(self, known: Sequence[str], join: Callable[[str], None], leave: Callable[[str], None]) -> None:
        """Tells of workers besides the known ones, and of those that come and go; for ever, if any can."""
        while True:
            now = await self.addresses()
            for address in [one for one in now if one not in known]:
                log.info("worker joins", worker=address)
                join(address)
            for address in [one for one in known if one not in now]:
                log.info("worker leaves", worker=address)
                leave(address)
            known = now
            if not self._groups:
                return
            await asyncio.sleep(RESOLVE_INTERVAL_S)

    async def _addresses_of(self, target: str) -> tuple[str, ...]:
        if target in self._found and target not in self._groups:
            return self._found[target]
        place = _place(target)
        if place is None:
            self._found[target] = (target,)
            return (target,)
        resolved = await self._resolve(target, *place)
        if len(resolved) > 1:
            self._groups.add(target)
        if target not in self._groups:  # gRPC looks it up itself, and knows both families
            self._found[target] = (target,)
        elif resolved:
            self._found[target] = resolved
        return self._found.get(target, ())

    async def _resolve(self, target: str, host: str, port: str) -> tuple[str, ...]:
        """HOST:PORT per address, in a fixed order; those of IPv4 if there are any."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if self._complaints.get(target) != str(error):
                self._complaints[target] = str(error)
                log.warning("the name of workers is not found", name=target, why=str(error))
            return ()
        self._complaints.pop(target, None)
        by_family = {family: set[str]() for family in (socket.AF_INET, socket.AF_INET6)}
        for family, _, _, _, address in found:
            by_family.get(family, set()).add(str(address[0]))
        chosen = by_family[socket.AF_INET] or by_family[socket.AF_INET6]
        ordered = sorted(chosen, key=lambda text: int(ipaddress.ip_address(text.partition("%")[0])))
        return tuple(f"[{text}]:{port}" if ":" in text else f"{text}:{port}" for text in ordered)


def _place(target: str) -> tuple[str, str] | None:
    """Host name and port of a target that is to be looked up; None for an address and for other schemes of gRPC."""
    text = target.removeprefix(_DNS).lstrip("/") if target.startswith(_DNS) else target
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not host or host.startswith("[") or ":" in host:
        return None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host, port
    return (host, port) if target.startswith(_DNS) else None
