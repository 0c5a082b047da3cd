"""No message brings a service down, makes it fail on a defect, or stays in its memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from octavo.serving.v1 import admin_pb2, generation_pb2, tokenizer_pb2
from octavo.worker.v1alpha1 import worker_pb2
from tests.integration.fuzzing import Method, fuzzed, methods
from tests.integration.harness import Cluster, cluster
from tests.integration.processes import REPOSITORY, ServiceProcess

SERVING = [
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"],
    tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
]
STEPPING = [worker_pb2.DESCRIPTOR.services_by_name["WorkerService"]]
OTHERS = [
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
]
CALL_TIMEOUT_S = 2.0
SILENCE_TIMEOUT_S = 0.02  # of a method that says nothing while nothing happens
SILENT = "octavo.serving.v1.AdminService.WatchSteps"
GROWTH_BYTES = 24 * 2**20


@pytest.fixture(scope="module")
def server(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(
        uniform_model,
        tmp_path_factory.mktemp("fuzz"),
        worker_args=["--num-gpu-blocks-override", "300"],
        scheduler_args=["--log-level", "warning", "--max-num-waiting", "64"],
    ) as running:
        yield running


def resident_bytes(process: ServiceProcess) -> int:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def throw(process: ServiceProcess, services: list[object], count: int) -> dict[str, Counter[str]]:
    """Sends so many messages to each method. Statuses by method. Fails if the process grows in the second half."""
    seen: dict[str, Counter[str]] = {}
    with grpc.insecure_channel(process.address) as channel:
        for method in methods(channel, services):
            dice = random.Random(method.descriptor.full_name)
            statuses: Counter[str] = Counter()
            halfway = 0
            for index in range(count):
                if index == count // 2:
                    halfway = resident_bytes(process)
                statuses[_throw_one(method, dice).name] += 1
            assert resident_bytes(process) - halfway < GROWTH_BYTES, method.descriptor.full_name
            seen[method.descriptor.full_name] = statuses
    return seen


def _throw_one(method: Method, dice: random.Random) -> grpc.StatusCode:
    kind = GetMessageClass(method.descriptor.input_type)
    timeout = SILENCE_TIMEOUT_S if method.descriptor.full_name == SILENT else CALL_TIMEOUT_S
    return method.send([fuzzed(kind, dice) for _ in range(dice.randint(1, 3))], timeout)


def traces(process: ServiceProcess) -> list[str]:
    """Lines of stack traces that go through our code; gRPC prints one of its own when a caller leaves at a bad time."""
    own = tuple(f"{REPOSITORY}/{package}/" for package in ("scheduler", "worker", "kernels"))
    return [line for line in process.log_text().splitlines() if any(path in line for path in own)]


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_whatever_is_sent_the_scheduler_serves_on(server: Cluster, count: int) -> None:
    seen = throw(server.scheduler, SERVING + OTHERS, count)
    for name, statuses in seen.items():
        assert statuses.total() == count
        assert not {"INTERNAL", "UNKNOWN", "UNAVAILABLE"} & statuses.keys() or name.startswith("grpc."), (
            name,
            statuses,
        )
    assert not traces(server.scheduler)
    assert len(server.complete("still here", max_tokens=5, ignore_eos=True).token_ids) == 5
    server.wait_empty()


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_whatever_is_sent_the_worker_serves_on(server: Cluster, count: int) -> None:
    """Its scheduler is thrown out by whoever opens a stream of a higher epoch, and comes back."""
    seen = throw(server.worker, STEPPING + OTHERS, count)
    assert all(statuses.total() == count for statuses in seen.values())
    assert not traces(server.worker)
    assert server.worker.running()
    assert len(server.complete("still here", max_tokens=5, ignore_eos=True).token_ids) == 5
    server.wait_empty()
