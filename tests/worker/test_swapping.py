"""Swapped and forked sequences over real gRPC: their tokens and logprobs are those of a run that nothing disturbed.

Blocks hold 4 tokens. Greedy tokens are checked against transformers; whoever read a foreign, stale or missing block
would go on differently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from octavo.worker.v1alpha1 import worker_pb2 as pb
from tests.worker.conftest import TinyModel
from tests.worker.plans import admission, step
from tests.worker.worker_client import InProcessWorker, Stream, serving

PROMPT = [5, 17, 99, 3, 42, 128, 7]
OTHER = [201, 44, 44, 180, 9]


def run(model: Path, scenario: Callable[[Stream], Awaitable[None]]) -> None:
    """Runs a scenario on a stream of a worker in this process."""

    async def main() -> None:
        async with serving(model) as worker:
            await scenario(await worker.open())

    asyncio.run(main())


def copies(sources: list[int], destinations: list[int]) -> pb.BlockCopies:
    return pb.BlockCopies(sources=sources, destinations=destinations)


def readmission(row: int, prompt: list[int], outputs: list[int], blocks: list[int]) -> pb.Admission:
    """A sequence that comes back with the KV of all its tokens but the last."""
    tokens = prompt + outputs
    return admission(
        row,
        tokens,
        blocks,
        num_computed_tokens=len(tokens) - 1,
        num_prompt_tokens=len(prompt),
        output_index=len(outputs),
        num_logprobs=0,
    )


async def generate(stream: Stream, first: pb.StepPlan, num_tokens: int) -> list[int]:
    """Tokens of the only row that the plan schedules and of the decode steps after it."""
    (row,) = first.scheduled.rows
    tokens = [(await stream.result(first)).tokens[0]]
    for step_id in range(first.step_id + 1, first.step_id + num_tokens):
        tokens.append((await stream.result(step(step_id, [row]))).tokens[0])
    return tokens


def test_two_sequences_take_turns_in_the_same_device_blocks(llama: TinyModel) -> None:
    one, other = llama.greedy(PROMPT, 8), llama.greedy(OTHER, 6)

    async def scenario(stream: Stream) -> None:
        first = step(0, [0], [7], admissions=[admission(0, PROMPT, [0, 1, 2])])
        assert await generate(stream, first, 3) == one[:3]
        # Out with the one, and the other takes its blocks in the same plan.
        turn = step(
            10,
            [1],
            [5],
            released_rows=[0],
            swap_out=copies([0, 1, 2], [9, 0, 15]),
            admissions=[admission(1, OTHER, [2, 1, 0])],
        )
        assert await generate(stream, turn, 4) == other[:4]
        # Out with the other, in with the one: into blocks that this plan's swap-out reads.
        turn = step(
            20,
            [5],
            released_rows=[1],
            swap_out=copies([2, 1, 0], [1, 2, 3]),
            swap_in=copies([9, 0, 15], [1, 2, 0]),
            admissions=[readmission(5, PROMPT, one[:3], [1, 2, 0, 30])],
        )
        assert await generate(stream, turn, 3) == one[3:6]
        # And both together, the other elsewhere.
        turn = step(
            30,
            [5, 1],
            swap_in=copies([1, 2, 3], [63, 40, 41]),
            admissions=[readmission(1, OTHER, other[:4], [63, 40, 41])],
        )
        assert list((await stream.result(turn)).tokens) == [one[6], other[4]]
        assert list((await stream.result(step(31, [5, 1]))).tokens) == [one[7], other[5]]

    run(llama.path, scenario)


def test_a_prompt_is_swapped_between_its_chunks(llama: TinyModel) -> None:
    expected = llama.greedy(PROMPT, 3)

    async def scenario(stream: Stream) -> None:
        await stream.result(step(0, [0], [5], [0], admissions=[admission(0, PROMPT, [0, 1])]))
        turn = step(
            1,
            [1],
            [5],
            released_rows=[0],
            swap_out=copies([0, 1], [3, 2]),
            admissions=[admission(1, OTHER, [1, 0])],
        )
        await stream.result(turn)
        back = admission(0, PROMPT, [7, 8, 9], num_computed_tokens=5)
        turn = step(2, [0], [2], swap_in=copies([3, 2], [7, 8]), admissions=[back])
        assert await generate(stream, turn, 3) == expected

    run(llama.path, scenario)


def test_out_in_and_copied_on_write_within_one_plan(llama: TinyModel) -> None:
    expected = llama.greedy(PROMPT, 6)

    async def scenario(stream: Stream) -> None:
        first = step(0, [0], [7], admissions=[admission(0, PROMPT, [0, 1, 2])])
        assert await generate(stream, first, 3) == expected[:3]
        turn = step(
            10,
            [0],
            released_rows=[0],
            swap_out=copies([0, 1, 2], [4, 5, 6]),
            swap_in=copies([6, 5, 4], [0, 20, 2]),
            copy_on_write=copies([0, 2], [1, 21]),
            admissions=[readmission(0, PROMPT, expected[:3], [21, 20, 1, 22])],
        )
        assert await generate(stream, turn, 3) == expected[3:]

    run(llama.path, scenario)


@pytest.mark.parametrize("length", [7, 8, 9])
def test_a_fork_shares_the_prompt_and_neither_sees_what_the_other_writes(llama: TinyModel, length: int) -> None:
    prompt = [*PROMPT, 77, 150][:length]
    expected = llama.greedy(prompt, 6)
    last = (length - 1) // 4  # index of the block of the prompt's last token

    async def scenario(stream: Stream) -> None:
        draws = {"temperature": 2.0, "seed": 11, "num_logprobs": 3}
        alone = step(0, [7], [length], admissions=[admission(7, prompt, range(50, 54), **draws)])
        undisturbed = [await stream.result(alone), *[await stream.result(step(place, [7])) for place in range(1, 6)]]
        parent = admission(0, prompt, range(4), num_logprobs=3)
        first = await stream.result(step(10, [0], [length], released_rows=[7], admissions=[parent]))
        # The child computes the prompt's last token again, in its own copy of the block that holds it.
        child = admission(1, prompt, [*range(last), *range(20, 24 - last)], num_computed_tokens=length - 1, **draws)
        fork = step(11, [0, 1], copy_on_write=copies([last], [20]), admissions=[child])
        results = [await stream.result(fork), *[await stream.result(step(place, [0, 1])) for place in range(12, 17)]]
        assert [first.tokens[0], *[result.tokens[0] for result in results[:5]]] == expected
        children = [result.tokens[1] for result in results]
        assert children == [result.tokens[0] for result in undisturbed]
        assert children != expected
        # The same prompt gives the same logprobs, before any draw.
        assert list(results[0].top_tokens[3:]) == list(first.top_tokens)
        assert list(results[0].top_logprobs[3:]) == pytest.approx(list(first.top_logprobs), abs=1e-4)
        for result, reference in zip(results, undisturbed, strict=True):
            assert list(result.top_logprobs[3:]) == pytest.approx(list(reference.top_logprobs), abs=1e-4)

    run(llama.path, scenario)


def test_the_time_of_copies_is_a_part_of_the_steps(llama: TinyModel) -> None:
    async def scenario(stream: Stream) -> None:
        first = step(0, [0], [7], admissions=[admission(0, PROMPT, range(4))])
        assert (await stream.result(first)).copy_ns == 0
        phases = {
            "swap_out": copies([0], [0]),
            "swap_in": copies([0], [9]),
            "copy_on_write": copies([0], [9]),
        }
        for step_id, (name, phase) in enumerate(phases.items(), 1):
            result = await stream.result(step(step_id, [0], **{name: phase}))
            assert 0 < result.copy_ns < result.execute_ns
        assert (await stream.result(step(9, [0]))).copy_ns == 0

    run(llama.path, scenario)


def test_a_stream_swaps_no_further_than_it_said(llama: TinyModel) -> None:
    async def main() -> None:
        async with serving(llama.path) as worker:
            await refused(worker, num_host_blocks=3, block=3)
            await refused(worker, num_host_blocks=0, block=0)

    async def refused(worker: InProcessWorker, num_host_blocks: int, block: int) -> None:
        stream = await worker.open(num_host_blocks=num_host_blocks)
        swap = step(0, [0], [7], swap_out=copies([0], [block]), admissions=[admission(0, PROMPT, range(4))])
        await stream.send(swap)
        code, details = await stream.end()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details == (
            f"swap_out.destinations: {block} is not allowed, it must be below {num_host_blocks} (host blocks)"
        )

    asyncio.run(main())
