"""Whatever is asked, the answer is a whole stream or a status that names a field, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest

from octavo.serving.v1 import generation_pb2, generation_pb2_grpc
from tests.integration.harness import CALL_CAP_S, Cluster, cluster
from tests.integration.request_fuzz import check_status, check_stream, random_request
from tests.oracle.lookup import LookupOracle, chain
from tests.oracle.tokenizer import EOS, byte_ids

_AT_ONCE = 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("fuzz")
    # Logits that lie close together, so that draws go everywhere; few blocks, so that sequences are preempted.
    oracle = LookupOracle(chain(*byte_ids("ab🦊"), 259, 260, EOS), margin=4.0)
    limits = ["--max-model-len", "64", "--tool-call-parser", "hermes", "--reasoning-parser", "think"]
    blocks = ["--num-gpu-blocks-override", "80", "--max-model-len", "64"]
    with cluster(oracle.write(folder / "model"), folder, worker_args=blocks, scheduler_args=limits) as made:
        yield made


def fuzz(server: Cluster, count: int, seed: int) -> Counter[str]:
    """What became of that many requests."""
    dice = random.Random(seed)
    requests = [random_request(dice) for _ in range(count)]
    outcomes: Counter[str] = Counter()

    async def ask_all() -> None:
        async with grpc.aio.insecure_channel(server.scheduler.address) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            gate = asyncio.Semaphore(_AT_ONCE)

            async def ask(request: generation_pb2.GenerateRequest) -> None:
                async with gate:
                    try:
                        responses = [part async for part in stub.Generate(request, timeout=CALL_CAP_S)]
                    except grpc.aio.AioRpcError as error:
                        check_status(request, error)
                        outcomes[error.code().name] += 1
                    else:
                        check_stream(request, responses)
                        outcomes["OK"] += 1

            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(ask(request))

    before = server.stats()
    asyncio.run(ask_all())
    after = server.wait_empty()
    assert after.worker.epoch == before.worker.epoch
    assert after.worker.restarts == before.worker.restarts == 0
    assert server.worker.running() and server.scheduler.running()
    assert "defect" not in server.scheduler.log_text()
    return outcomes


def test_every_answer_is_a_stream_or_names_a_field(server: Cluster) -> None:
    outcomes = fuzz(server, 1000, seed=1)
    assert outcomes["OK"] > 200 and outcomes["INVALID_ARGUMENT"] > 200


@pytest.mark.slow
def test_five_thousand_of_them(server: Cluster) -> None:
    outcomes = fuzz(server, 5000, seed=2)
    print(f"outcomes of 5,000 requests: {dict(outcomes)}")
    assert outcomes["OK"] > 1000 and outcomes["INVALID_ARGUMENT"] > 1000
