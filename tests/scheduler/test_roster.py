"""Which workers the targets of --worker stand for, as lookups change."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from scheduler import roster
from scheduler.roster import Roster

Names = dict[str, list[str]]


class Resolver(asyncio.SelectorEventLoop):
    """An event loop that looks names up in a table."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.names = names

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        found = []
        for address in self.names[host]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            found.append((family, socket.SOCK_STREAM, 6, "", (address, int(port))))
        return found


def addresses(targets: Sequence[str], names: Names) -> tuple[str, ...]:
    loop = Resolver(names)
    try:
        return loop.run_until_complete(Roster(targets).addresses())
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["10.0.0.1:5"], ("10.0.0.1:5",)),
        (["[::1]:5"], ("[::1]:5",)),
        (["unix:/tmp/worker.sock"], ("unix:/tmp/worker.sock",)),
        (["10.0.0.1:5", "10.0.0.2:5", "10.0.0.1:5"], ("10.0.0.1:5", "10.0.0.2:5")),
        (["one:5"], ("one:5",)),  # gRPC looks it up, and knows both families
        (["dns:///one:5"], ("10.0.0.1:5",)),
        (["dns:one:5"], ("10.0.0.1:5",)),
        (["many:5"], ("10.0.0.2:5", "10.0.0.9:5", "10.0.0.10:5")),
        (["dns:///many:5", "10.0.0.2:5"], ("10.0.0.2:5", "10.0.0.9:5", "10.0.0.10:5")),
        (["dns:///six:5"], ("[fd00::1]:5", "[fd00::2]:5")),
        (["nobody:5"], ("nobody:5",)),  # gRPC says why, again and again
        (["dns:///nobody:5"], ()),
    ],
)
def test_targets_stand_for(targets: list[str], expected: tuple[str, ...]) -> None:
    names = {
        "one": ["::1", "10.0.0.1"],
        "many": ["10.0.0.10", "10.0.0.9", "fd00::1", "10.0.0.2"],
        "six": ["fd00::2", "fd00::1"],
    }
    assert addresses(targets, names) == expected


def test_workers_come_and_go_with_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "RESOLVE_INTERVAL_S", 0.005)
    news: list[str] = []
    names: Names = {"many": ["10.0.0.1", "10.0.0.2"]}

    async def case() -> None:
        task = asyncio.create_task(
            Roster(["dns:///many:5"]).follow(
                ("10.0.0.1:5",), lambda one: news.append(f"+{one}"), lambda one: news.append(f"-{one}")
            )
        )

        async def until(expected: list[str]) -> None:
            async with asyncio.timeout(20):
                while news != expected:  # noqa: ASYNC110 - a plain value, which signals nothing
                    await asyncio.sleep(0.002)

        await until(["+10.0.0.2:5"])
        names["many"] = ["10.0.0.2", "10.0.0.3"]
        await until(["+10.0.0.2:5", "+10.0.0.3:5", "-10.0.0.1:5"])
        del names["many"]
        await asyncio.sleep(0.05)  # a resolver that fails takes nobody away
        names["many"] = ["10.0.0.3"]
        await until(["+10.0.0.2:5", "+10.0.0.3:5", "-10.0.0.1:5", "-10.0.0.2:5"])
        task.cancel()

    loop = Resolver(names)
    try:
        loop.run_until_complete(case())
    finally:
        loop.close()


def test_addresses_alone_are_looked_at_once() -> None:
    async def case() -> None:
        await asyncio.wait_for(Roster(["10.0.0.1:5"]).follow((), lambda one: None, lambda one: None), 20)

    asyncio.run(case())
