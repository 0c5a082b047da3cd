"""The triton backend through the whole worker, a process whose kernels are interpreted: plan by plan it answers as the
torch backend does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from octavo.worker.v1alpha1 import worker_pb2 as pb
from octavo.worker.v1alpha1 import worker_pb2_grpc as pb_grpc
from tests.integration.harness import worker_process
from tests.integration.processes import ServiceProcess
from tests.worker.conftest import TinyModel
from tests.worker.plans import admission, step
from tests.worker.worker_client import Stream, opening, serving

PROMPT = [5, 17, 99, 3, 42, 128, 7]
OTHER = [201, 44, 44, 180, 9]
ARGUMENTS = ("--backend=triton", "--device=cpu", "--dtype=float32", "--num-gpu-blocks-override=64", "--block-size=4")


@pytest.fixture(scope="module")
def triton_worker(llama: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    pytest.importorskip("triton")
    logs = tmp_path_factory.mktemp("triton")
    worker = worker_process(llama.path, logs, [*ARGUMENTS, "--threads=1"], {"TRITON_INTERPRET": "1"})
    try:
        yield worker.start().wait_serving()
    finally:
        worker.kill()


def copies(sources: list[int], destinations: list[int]) -> pb.BlockCopies:
    return pb.BlockCopies(sources=sources, destinations=destinations)


def plans(one: list[int], other: list[int]) -> list[pb.StepPlan]:
    """A prompt in chunks beside a whole one, decoding, a fork, and a sequence that is swapped out and in.

    one, other: what follows PROMPT and OTHER.
    """
    asks = {"num_logprobs": 20}
    forked = admission(2, PROMPT, [0, 20], num_computed_tokens=6, temperature=2.0, seed=11, **asks)
    back = admission(
        3, OTHER + other[:3], [40, 41, 42], num_computed_tokens=7, num_prompt_tokens=5, output_index=3, **asks
    )
    return [
        step(0, [0], [5], [0], admissions=[admission(0, PROMPT, [0, 1, 2], **asks)]),
        step(1, [0, 1], [2, 5], admissions=[admission(1, OTHER, [9, 8, 7], **asks)]),
        step(2, [1, 0, 2], copy_on_write=copies([1], [20]), admissions=[forked]),
        step(3, [0, 1]),
        step(4, [0], released_rows=[1, 2], swap_out=copies([9, 8], [3, 5])),
        step(5, [3, 0], swap_in=copies([5, 3], [41, 40]), admissions=[back]),
    ]


async def answers(stream: Stream, messages: list[pb.StepPlan]) -> list[pb.StepResult]:
    return [await stream.result(message) for message in messages]


async def of_torch(model: Path, messages: list[pb.StepPlan]) -> list[pb.StepResult]:
    async with serving(model) as worker:
        return await answers(await worker.open(), messages)


async def of_triton(address: str, messages: list[pb.StepPlan]) -> list[pb.StepResult]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.WorkerServiceStub(channel)
        stream = Stream(stub)
        await stream.send(await opening(stub))
        assert (await stream.receive()).HasField("opened")
        return await answers(stream, messages)


def test_it_answers_as_torch_does(llama: TinyModel, triton_worker: ServiceProcess) -> None:
    one, other = llama.greedy(PROMPT, 5), llama.greedy(OTHER, 4)
    messages = plans(one, other)
    expected = asyncio.run(of_torch(llama.path, messages))
    results = asyncio.run(of_triton(triton_worker.address, messages))
    for result, reference in zip(results, expected, strict=True):
        assert list(result.tokens) == list(reference.tokens)
        assert list(result.top_tokens) == list(reference.top_tokens)
        assert list(result.top_logprobs) == pytest.approx(list(reference.top_logprobs), abs=1e-4)
    sampled = [list(result.tokens) for result in results]
    assert [sampled[1][0], sampled[2][1], sampled[3][0], sampled[4][0], sampled[5][1]] == one
    assert [sampled[1][1], sampled[2][0], sampled[3][1], sampled[5][0]] == other
