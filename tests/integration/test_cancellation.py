"""Cancelling calls gives their blocks back and leaves the others alone."""

from __future__ import annotations

from pathlib import Path

from clients import AlreadyExistsError, Completion, DeltaStream, FinishReason
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import wait_until

CANCELLED = (2, 7, 11)


def submit(server: Cluster, index: int) -> DeltaStream:
    prompt = f"Stream {index} begins here" + ", and goes on" * index
    return server.generate(prompt, temperature=1.0, seed=index, max_tokens=120, ignore_eos=True)


def outcome(completion: Completion) -> tuple[str, tuple[int, ...]]:
    return completion.text, completion.token_ids


def test_three_of_sixteen_are_cancelled_midway(uniform_model: Path, tmp_path: Path) -> None:
    with cluster(uniform_model, tmp_path, worker_args=["--num-gpu-blocks-override", "400"]) as server:
        assert server.wait_empty().blocks.free == 400
        alone = [outcome(collect(submit(server, index))) for index in range(16)]
        before = server.wait_empty().counters

        streams = [submit(server, index) for index in range(16)]
        for index in CANCELLED:
            for _ in range(5):
                next(streams[index])
            streams[index].close()
        for index, stream in enumerate(streams):
            if index not in CANCELLED:
                assert outcome(collect(stream)) == alone[index]

        after = server.wait_empty().counters  # free + cached is the whole pool again
        assert after.finished - before.finished == 16
        # The cancelled ones did end midway: 13 whole answers and less than 3 more.
        assert 13 * 120 < after.generated_tokens - before.generated_tokens < 16 * 120


def test_an_id_reused_right_after_its_cancel_is_not_hit_by_the_late_cancel(uniform_model: Path, tmp_path: Path) -> None:
    """The cancel of one request and the Add of the next are on their way at the same time, in the engine's inbox or
    behind a step."""
    with cluster(uniform_model, tmp_path, worker_args=["--num-gpu-blocks-override", "400"]) as server:

        def reuse() -> Completion | None:
            try:
                return server.complete("again", request_id="mine", max_tokens=3, ignore_eos=True)
            except AlreadyExistsError:  # the cancel has not reached the scheduler
                return None

        for _ in range(40):
            with server.generate("first", request_id="mine", max_tokens=3000, ignore_eos=True) as stream:
                next(stream)
            again = wait_until(reuse, "the id is free again")
            assert again is not None
            assert len(again.token_ids) == 3
            assert again.finish_reason is FinishReason.LENGTH
        assert server.wait_empty().counters.finished == 80
