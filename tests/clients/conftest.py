"""A scripted server for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.peer import Peer, RunningPeer


@pytest.fixture
def running_peer() -> Iterator[tuple[Peer, str]]:
    running = RunningPeer()
    target = running.start()
    yield running.peer, target
    running.stop()


@pytest.fixture
def peer(running_peer: tuple[Peer, str]) -> Peer:
    return running_peer[0]


@pytest.fixture
def target(running_peer: tuple[Peer, str]) -> str:
    return running_peer[1]
