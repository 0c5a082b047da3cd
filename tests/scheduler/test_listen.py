"""The address that the services listen on; the worker has the same module."""

from __future__ import annotations

import asyncio
import socket
from types import ModuleType
from typing import Any, cast

import pytest

import scheduler.listen
import worker.listen
from scheduler.config import SchedulerConfig
from scheduler.server import serve
from tests.integration.processes import WAIT_CAP_S


@pytest.fixture(params=[scheduler.listen, worker.listen], ids=lambda module: module.__name__)
def listen(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def test_ipv6_addresses_are_bracketed(listen: ModuleType) -> None:
    assert listen.listen_address("::1", 50051) == "[::1]:50051"
    assert listen.listen_address("localhost", 0) == "localhost:0"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"])
def test_a_free_address_is_good_and_one_in_use_is_not(listen: ModuleType, host: str) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    try:
        taken = socket.socket(family, kind, protocol)
        taken.bind(address)
    except OSError as error:
        pytest.skip(f"{host}: {error}")
    with taken:
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(listen.ListenError) as caught:
            listen.check_free(host, port)
    shown = listen.listen_address(host, port)
    assert str(caught.value) == f"cannot listen on {shown}: Address already in use; --port picks another"
    listen.check_free(host, port)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", "not an address of this machine"),  # reserved for documentation, nobody's
        ("a..b", "no such host"),
        ("", "no such host"),
        ("[::1]", "no such host"),
    ],
)
def test_an_address_that_cannot_be_had_says_why(listen: ModuleType, host: str, reason: str) -> None:
    with pytest.raises(listen.ListenError) as caught:
        listen.check_free(host, 50051)
    assert str(caught.value) == f"cannot listen on {listen.listen_address(host, 50051)}: {reason}"


def test_a_metrics_port_that_is_in_use_is_refused_before_a_worker_has_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = SchedulerConfig(model="m", host="127.0.0.1", port=0, metrics_port=taken.getsockname()[1])
        with pytest.raises(scheduler.listen.ListenError, match="Address already in use; --metrics-port picks another"):
            asyncio.run(asyncio.wait_for(serve(config, cast(Any, None)), timeout=WAIT_CAP_S))
